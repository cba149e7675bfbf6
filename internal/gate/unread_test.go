package gate_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"testing"

	"github.com/nokv/nokv/internal/testing/proctest"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// What has come of complete messages that no call reads counts like what has come of
// unfinished ones: a connection with many such calls is closed before it is more than its
// share. Without that the windows of its streams are what it holds.
func TestUnreadMessagesAreCounted(t *testing.T) {
	for name, size := range map[string]int{"large": 20_000, "ordinary": 1000, "tiny": 1} {
		t.Run(name, func(t *testing.T) {
			w := serve(t, 64*mib)
			before := live()
			a := w.attack(t, false)
			a.greet()
			message := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(size)), make([]byte, size)...)
			const streams, each = 500, 60 << 10 // within the window before SETTINGS
			sent := 0
			for stream := uint32(1); stream < 2*streams; stream += 2 {
				if a.open(stream, deaf) != nil {
					break
				}
				var err error
				for n := len(message); n <= each && err == nil; n += len(message) {
					if err = a.data(stream, message); err == nil { // each in a frame of its own
						sent += len(message)
					}
				}
				if err != nil {
					break
				}
			}
			held, used := live()-before, w.budget.Vars().Holders["receiving"].Peak
			t.Logf("%d KiB were sent and not read: %d KiB of memory, %d KiB counted at most", sent>>10, held>>10, used>>10)
			if held > 9*mib {
				t.Errorf("one connection holds %d KiB of a share of 8 MiB", held>>10)
			}
			_ = a.end()
			if closed := w.gate.Vars(nil).Closed; closed["memory"] != 1 {
				t.Errorf("it was not closed for that: %v", closed)
			}
		})
	}
}

// Calls that read what comes owe nothing for it, however much and however fast it comes,
// one message behind the other or ahead of what is read.
func TestReadMessagesAreNotCounted(t *testing.T) {
	w := serve(t, 64*mib)
	conn := w.dial(t)
	ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, chat)
	if err != nil {
		t.Fatal(err)
	}
	const messages = 2000
	go func() {
		for i := range messages {
			if stream.SendMsg(wrapperspb.Bytes(bytes.Repeat([]byte{1}, 1+i%64<<10))) != nil {
				return
			}
		}
	}()
	for i := range messages {
		if err := stream.RecvMsg(new(wrapperspb.BytesValue)); err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
	}
	// All are read; the stream itself counts.
	if used := w.budget.Vars().Holders["receiving"].Used; used > 2<<10 {
		t.Errorf("%d bytes are counted of messages that were read", used)
	}
}
