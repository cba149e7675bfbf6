// Package headers compares names of headers as servers do that make variables of them: Nokv-Epoch, Nokv_Epoch and Nokv.Epoch are
// one and the same there.
package headers

import (
	"net/http"
	"strings"
)

// Begins says whether a name begins with a prefix of plain characters.
func Begins(name, prefix string) bool {
	if len(name) < len(prefix) {
		return false
	}
	for i := range len(prefix) {
		if plain(name[i]) != prefix[i] {
			return false
		}
	}
	return true
}

// Is says whether a name is one of plain characters.
func Is(name, plain string) bool { return len(name) == len(plain) && Begins(name, plain) }

// plain is what a character of a name is, if both cases of a letter are the same, and so are all characters that are
// no letter and no digit.
func plain(c byte) byte {
	switch {
	case 'A' <= c && c <= 'Z':
		return c + 'a' - 'A'
	case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
		return c
	}
	return '-'
}

// Plain is a name of plain characters.
func Plain(name string) string {
	out := []byte(name)
	for i, c := range out {
		out[i] = plain(c)
	}
	return string(out)
}

// Forwarded says whether a header of a caller would count as one of whoever passes the request on, who makes X-Forwarded-*
// anew himself.
func Forwarded(name string) bool {
	return Begins(name, "x-forwarded-") && !strings.HasPrefix(name, "X-Forwarded-") || Is(name, "x-real-ip")
}

// ForwardedTrailer is Forwarded of trailers, which some servers take for headers.
func ForwardedTrailer(name string) bool {
	return Begins(name, "x-forwarded-") || Is(name, "x-real-ip") || strings.EqualFold(name, "forwarded")
}

// Fill sets the trailers whose names were announced. The values have come with the end of the body.
func Fill(to, from http.Header) {
	for name := range to {
		to[name] = from[name]
	}
}
