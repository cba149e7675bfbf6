package transport

import (
	"bytes"
	"io"
	"testing"
)

func TestFramesSurviveTheWire(t *testing.T) {
	var wire []byte
	sizes := []int{0, 1, 1000, 64 << 10, 64<<10 + 1, 3 << 20}
	for i, n := range sizes {
		wire = appendFrame(wire, kindMessage, bytes.Repeat([]byte{byte(i)}, n))
	}
	r := newFrameReader(bytes.NewReader(wire), 0)
	for i, n := range sizes {
		k, payload, err := r.next()
		if err != nil || k != kindMessage || len(payload) != n || !bytes.Equal(payload, bytes.Repeat([]byte{byte(i)}, n)) {
			t.Fatalf("frame of %d bytes: kind %d, %d bytes, %v", n, k, len(payload), err)
		}
	}
	if _, _, err := r.next(); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
}

func TestEveryFlippedBitIsSeen(t *testing.T) {
	wire := appendFrame(nil, kindStanding, []byte("0123456789abcdef"))
	for bit := range len(wire) * 8 {
		broken := bytes.Clone(wire)
		broken[bit/8] ^= 1 << (bit % 8)
		if k, payload, err := newFrameReader(bytes.NewReader(broken), 0).next(); err == nil {
			t.Errorf("bit %d: taken as kind %d with %q", bit, k, payload)
		}
	}
	for n := 1; n < len(wire); n++ {
		if _, _, err := newFrameReader(bytes.NewReader(wire[:n]), 0).next(); err != io.ErrUnexpectedEOF {
			t.Errorf("%d of %d bytes: %v", n, len(wire), err)
		}
	}
}

// FuzzFrames feeds bytes to the decoder: it never panics, never takes more than
// a kind's limit, and what it takes encodes to the same bytes.
func FuzzFrames(f *testing.F) {
	f.Add(appendFrame(nil, kindAlive, nil))
	f.Add(appendFrame(appendFrame(nil, kindStanding, make([]byte, 16)), kindChunk, []byte("abc")))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, byte(kindMessage), 0, 0, 0, 0})
	f.Add(appendFrame(nil, kindHello, hello{speaks: spoken, address: "a:1"}.append(nil)))
	f.Add(appendFrame(nil, kindWelcome, welcome{node: 1}.append(nil)))
	f.Fuzz(func(t *testing.T, wire []byte) {
		r := newFrameReader(bytes.NewReader(wire), 0)
		var again []byte
		for {
			k, payload, err := r.next()
			if err != nil {
				break
			}
			if len(payload) > k.limit() {
				t.Fatalf("kind %d with %d bytes", k, len(payload))
			}
			again = appendFrame(again, k, payload)
			if k == kindHello {
				if h, err := parseHello(payload, spoken); err == nil && h.speaks == spoken && !bytes.Equal(h.append(nil), payload) {
					t.Fatalf("hello %+v encodes differently", h)
				}
			}
			if k == kindWelcome {
				_, _ = parseWelcome(payload)
			}
		}
		if !bytes.HasPrefix(wire, again) {
			t.Fatalf("decoded frames encode differently")
		}
		if cap(r.buf) > 2*max(len(wire), 64<<10) {
			t.Fatalf("%d bytes on the wire made a buffer of %d", len(wire), cap(r.buf))
		}
	})
}
