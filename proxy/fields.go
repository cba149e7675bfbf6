package proxy

import (
	"io"
	"maps"
	"net/http"
	"strings"

	"github.com/nokv/nokv/router"
)

// Reserved says whether a header is one that the control plane and this proxy alone set: its name begins with Nokv-. Those of
// callers do not reach members, and those of members do not reach callers. No such headers are HeaderPin, and what a caller
// says itself: the key of gRPC, Nokv-Key or Nokv-Key-Bin, the cluster that it means, and why it asks.
//
// Application servers that make variables of headers write the same one for Nokv-Epoch, Nokv_Epoch and Nokv.Epoch, so
// that all of these are reserved.
func Reserved(name string) bool {
	if !begins(name, "nokv-") {
		return false
	}
	switch http.CanonicalHeaderKey(name) {
	case HeaderPin, "Nokv-Key", "Nokv-Key-Bin", "Nokv-Cluster", "Nokv-Why":
		return false
	}
	return true
}

func reserved(name string, _ []string) bool { return Reserved(name) }

// forged says whether a header of a caller would count at the member as one that the proxy has set.
func forged(name string, _ []string) bool {
	forwarded := begins(name, "x-forwarded-") && !strings.HasPrefix(name, "X-Forwarded-") // those are made anew
	return Reserved(name) || forwarded || len(name) == len("x-real-ip") && begins(name, "x-real-ip")
}

// forgedTrailer is forged of trailers, which some servers take for headers.
func forgedTrailer(name string, values []string) bool {
	return forged(name, values) || begins(name, "x-forwarded-") || strings.EqualFold(name, "forwarded")
}

// begins says whether a name begins with a prefix of plain characters.
func begins(name, prefix string) bool {
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

// plainOf is a name of plain characters.
func plainOf(name string) string {
	out := []byte(name)
	for i, c := range out {
		out[i] = plain(c)
	}
	return string(out)
}

// trailers are those of a request, for one try. Their names are known with the headers and their values behind the body. A try
// has a map of its own, because the transport may still read the names for the try before.
func (x *exchange) trailers(out, req *http.Request) {
	if len(out.Trailer) == 0 || out.ContentLength == 0 {
		req.Trailer = nil
		return
	}
	req.Trailer = out.Trailer.Clone()
	if maps.DeleteFunc(req.Trailer, forgedTrailer); len(req.Trailer) > 0 {
		// HTTP/1.1 has trailers behind chunks only. That is said, because the transport else reads the beginning of
		// some bodies beside itself to find out, and the trailers of an empty one with it.
		req.ContentLength, req.TransferEncoding = -1, []string{"chunked"}
	}
}

// fill sets the trailers whose names were announced. The values have come with the end of the body.
func fill(to, from http.Header) {
	for name := range to {
		to[name] = from[name]
	}
}

// answerBody is the body of an answer. With its end come trailers.
type answerBody struct {
	io.ReadCloser
	answer  *http.Response
	attempt *router.Attempt
}

// Read implements io.Reader.
func (b *answerBody) Read(buf []byte) (int, error) {
	n, err := b.ReadCloser.Read(buf)
	b.attempt.Heard()
	if err == io.EOF {
		maps.DeleteFunc(b.answer.Trailer, reserved)
	}
	return n, err
}
