// Package proto holds the wire format: the .proto files and the code made of them.
package proto

//go:generate go run -C ../tools ./protogen ../proto
