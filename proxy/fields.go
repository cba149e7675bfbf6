package proxy

import (
	"io"
	"maps"
	"net/http"

	"github.com/nokv/nokv/internal/headers"
	"github.com/nokv/nokv/router"
)

// Reserved says whether a header is one that the control plane and this proxy alone set: its name begins with Nokv-. Those of
// callers do not reach members, and those of members do not reach callers. No such headers are HeaderPin, and what a caller
// says itself: the key of gRPC, Nokv-Key or Nokv-Key-Bin, the cluster that it means, and why it asks.
//
// Application servers that make variables of headers write the same one for Nokv-Epoch, Nokv_Epoch and Nokv.Epoch, so
// that all of these are reserved.
func Reserved(name string) bool {
	if !headers.Begins(name, "nokv-") {
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
	return Reserved(name) || headers.Forwarded(name)
}

// forgedTrailer is forged of trailers, which some servers take for headers.
func forgedTrailer(name string, _ []string) bool {
	return Reserved(name) || headers.ForwardedTrailer(name)
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

// answerBody is the body of an answer. With its end come trailers.
type answerBody struct {
	io.ReadCloser
	answer  *http.Response
	attempt *router.Attempt
}

// Read implements io.Reader.
func (b *answerBody) Read(buf []byte) (int, error) {
	b.attempt.Waiting()
	n, err := b.ReadCloser.Read(buf)
	b.attempt.Waited(true)
	if err == io.EOF {
		maps.DeleteFunc(b.answer.Trailer, reserved)
	}
	return n, err
}
