// Package proto holds the wire format: the .proto files and the code made of them.
package proto

//go:generate go tool -modfile=../tools/go.mod buf generate
