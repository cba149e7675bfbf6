package roottest

import (
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// Snapshot asks the current peer for its state in chunks of so many records.
// recv must call Taken on the stream for each message.
func (l *Link) Snapshot(records int, recv func(*rootv1.SnapshotChunk, error)) *Stream {
	fail := func(err error) { recv(nil, err) }
	return l.open(func(s *session) {
		chunks, err := chunksOf(s.peer.View().State, records)
		if err != nil {
			s.stream.push(func() { fail(err) })
			s.life = 0
			return
		}
		s.step = func() {
			for len(chunks) > 0 && !s.stream.full() {
				chunk := chunks[0]
				chunks = chunks[1:]
				s.stream.push(func() { recv(chunk, nil) })
			}
		}
	}, fail)
}

// chunksOf cuts a state into chunks that share nothing with it.
func chunksOf(st *state.State, records int) ([]*rootv1.SnapshotChunk, error) {
	token := st.Token().Proto()
	chunks := []*rootv1.SnapshotChunk{{Token: token}}
	total := uint64(0)
	err := st.Records(func(r *rootv1.Record) error {
		last := chunks[len(chunks)-1]
		if len(last.Records) >= records {
			last = &rootv1.SnapshotChunk{Token: token}
			chunks = append(chunks, last)
		}
		last.Records = append(last.Records, proto.CloneOf(r))
		total++
		return nil
	})
	last := chunks[len(chunks)-1]
	last.Last, last.RecordCount, last.StateHash = true, total, st.Hash()
	return chunks, err
}
