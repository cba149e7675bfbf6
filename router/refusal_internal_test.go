package router

import (
	"errors"
	"net"
	"testing"
)

// Nothing was sent where it is the Target's own address that was dialled in vain; a Target that has
// a name is dialled at an address of its own port.
func TestP08WhatWasNotSent(t *testing.T) {
	at := func(ip string, port int) error {
		return &net.OpError{Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.ParseIP(ip), Port: port}, Err: errors.New("refused")}
	}
	noHost := func(name string) error {
		return &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: name}}
	}
	for _, row := range []struct {
		name    string
		err     error
		address string
		unsent  bool
	}{
		{"the same", at("10.0.0.1", 7), "10.0.0.1:7", true},
		{"written in another way", at("::1", 7), "[0:0:0:0:0:0:0:1]:7", true},
		{"another machine", at("10.0.0.2", 7), "10.0.0.1:7", false},
		{"another port", at("10.0.0.1", 8), "10.0.0.1:7", false},
		{"a name", at("10.0.0.1", 7), "m1.games:7", true},
		{"a name, another port", at("10.0.0.1", 8), "m1.games:7", false},
		{"a name that is not known", noHost("m1.games."), "m1.games:7", true},
		{"another name that is not known", noHost("db"), "m1.games:7", false},
		{"nobody says where", &net.OpError{Op: "dial", Err: errors.New("refused")}, "10.0.0.1:7", false},
		{"behind the dial", &net.OpError{Op: "read", Addr: &net.TCPAddr{IP: net.ParseIP("10.0.0.1"), Port: 7}, Err: errors.New("reset")}, "10.0.0.1:7", false},
		{"its caller says so", NotSent(at("10.0.0.2", 7)), "10.0.0.1:7", true},
	} {
		if got := unsent(row.err, row.address); got != row.unsent {
			t.Errorf("%s: unsent is %t, want %t", row.name, got, row.unsent)
		}
	}
}
