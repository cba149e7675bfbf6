// Package mutation shows that the rules of authority are tested: each is broken
// in the code, in a copy of the file that only the compiler sees, and some fast
// test must fail.
//
// It promises: (1) a mutation that no test notices fails the run; (2) a mutation
// whose place in the code is gone fails every run, so that the list stays true.
// The mutations themselves take minutes:
//
//	go test ./internal/testing/mutation -mutate
package mutation
