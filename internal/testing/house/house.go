// Package house holds the tests of the house rules: the direction of imports,
// documentation of exported names, generated code that is fresh, and the
// linters. It has no code of its own.
package house
