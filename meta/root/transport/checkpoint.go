package transport

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"time"

	"github.com/nokv/nokv/meta/root/replica"
	"github.com/nokv/nokv/meta/root/storage"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// offerCheckpoint asks for the current checkpoint to be sent, behind the one that
// is under way. Of several that wait, the newest MsgSnap goes and answers for all.
func (p *remote) offerCheckpoint(m *raftpb.Message) {
	p.mu.Lock()
	gone := p.gone
	if !gone {
		p.snapshot = m
	}
	p.mu.Unlock()
	if gone {
		p.t.receiver.SnapshotDelivered(p.id.NodeID, false)
		return
	}
	signal(p.offer)
}

// Pauses behind a checkpoint that did not reach its peer, doubled each time: one whose
// disk is full would be sent all of it ten times a second.
const (
	sendAgainMin = 100 * time.Millisecond
	sendAgainMax = 10 * time.Second
)

// sendCheckpoints sends checkpoints to the peer, one at a time. Raft asks for another one
// when it is told how the last one ended.
func (p *remote) sendCheckpoints(ctx context.Context) {
	defer p.sendNoMore()
	var pause time.Duration
	for {
		select {
		case <-p.offer:
		case <-ctx.Done():
			return
		}
		p.mu.Lock()
		m := p.snapshot
		p.snapshot = nil
		p.mu.Unlock()
		if m == nil {
			continue
		}
		began := time.Now()
		meta, err := p.sendCheckpoint(ctx, m)
		if err != nil {
			pause = min(max(2*pause, sendAgainMin), sendAgainMax)
			p.t.log.Warn("checkpoint did not reach root peer", "peer", p.id.NodeID, "index", meta.Index, "again_in", pause, "err", err)
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
		} else {
			pause = 0
			p.t.log.Info("checkpoint reached root peer", "peer", p.id.NodeID, "index", meta.Index, "bytes", meta.Bytes, "took", time.Since(began))
		}
		p.t.receiver.SnapshotDelivered(p.id.NodeID, err == nil)
	}
}

// sendNoMore answers for a MsgSnap that still waits, and for those to come.
func (p *remote) sendNoMore() {
	p.mu.Lock()
	p.gone = true
	waits := p.snapshot != nil
	p.snapshot = nil
	p.mu.Unlock()
	if waits {
		p.t.receiver.SnapshotDelivered(p.id.NodeID, false)
	}
}

func (p *remote) sendCheckpoint(ctx context.Context, m *raftpb.Message) (storage.CheckpointMeta, error) {
	file, meta, err := p.t.cfg.Checkpoints.OpenCheckpoint()
	if err != nil {
		return meta, fmt.Errorf("open checkpoint: %w", err)
	}
	defer file.Close()
	conn, err := p.connect(ctx, forCheckpoint, p.t.cfg.HandshakeTimeout)
	if err != nil {
		return meta, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	begin, err := proto.Marshal(m)
	if err != nil {
		return meta, fmt.Errorf("encode message: %w", err)
	}
	p.t.log.Info("sending checkpoint to root peer", "peer", p.id.NodeID, "index", meta.Index, "bytes", meta.Bytes)
	s := &chunkWriter{conn: conn, timeout: p.t.cfg.DeadAfter}
	if err := s.write(kindBegin, begin); err != nil {
		return meta, err
	}
	if err := s.copy(file, newProgress(p, meta)); err != nil {
		return meta, err
	}
	return meta, awaitReceived(conn, p.t.cfg.CheckpointTimeout)
}

// chunkWriter writes frames with a deadline each.
type chunkWriter struct {
	conn    net.Conn
	timeout time.Duration
	buf     []byte
}

func (w *chunkWriter) write(k kind, payload []byte) error {
	if err := w.conn.SetWriteDeadline(time.Now().Add(w.timeout)); err != nil {
		return err
	}
	w.buf = appendFrame(w.buf[:0], k, payload)
	_, err := w.conn.Write(w.buf)
	return err
}

// copy writes the file in chunks, and an end that covers all of it.
func (w *chunkWriter) copy(file io.Reader, progress func(sent uint64)) error {
	chunk := make([]byte, chunkBytes)
	var sent uint64
	var sum uint32
	for {
		n, err := io.ReadFull(file, chunk)
		if n > 0 {
			sent += uint64(n)
			sum = crc32.Update(sum, castagnoli, chunk[:n])
			if err := w.write(kindChunk, chunk[:n]); err != nil {
				return err
			}
			progress(sent)
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read checkpoint: %w", err)
		}
	}
	end := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(nil, sent), sum)
	return w.write(kindEnd, end)
}

// newProgress logs every ten seconds how far a transfer is.
func newProgress(p *remote, meta storage.CheckpointMeta) func(uint64) {
	logged := time.Now()
	return func(sent uint64) {
		if time.Since(logged) < 10*time.Second {
			return
		}
		logged = time.Now()
		p.t.log.Info("sending checkpoint to root peer", "peer", p.id.NodeID, "index", meta.Index, "sent", sent, "bytes", meta.Bytes)
	}
}

func awaitReceived(conn net.Conn, timeout time.Duration) error {
	if err := conn.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	k, payload, err := newFrameReader(conn, 0).next()
	if err != nil {
		return fmt.Errorf("wait for the receipt of a checkpoint: %w", err)
	}
	switch k {
	case kindReceived:
		return nil
	case kindRefusal:
		return fmt.Errorf("the peer did not take the checkpoint: %s", payload)
	}
	return fmt.Errorf("frame of kind %d is not a receipt", k)
}

// receiveCheckpoint takes one checkpoint, and delivers its MsgSnap when the
// storage has verified all of it.
func (t *Transport) receiveCheckpoint(conn net.Conn, from *remote, frames *frameReader) error {
	if err := conn.SetDeadline(time.Now().Add(t.cfg.DeadAfter)); err != nil {
		return err
	}
	frames.only = kindBegin
	_, payload, err := frames.next()
	if err != nil {
		return err
	}
	m, err := t.decode(from, payload)
	if err != nil {
		return err
	}
	if m.GetType() != raftpb.MsgSnap || m.GetSnapshot().GetMetadata() == nil {
		return fmt.Errorf("a checkpoint begins with a %s", m.GetType())
	}
	frames.only = 0
	t.log.Info("receiving checkpoint from root peer", "peer", from.id.NodeID, "index", m.GetSnapshot().GetMetadata().GetIndex())
	meta, err := t.cfg.Checkpoints.ReceiveCheckpoint(&chunkReader{conn: conn, frames: frames, timeout: t.cfg.DeadAfter})
	w := &chunkWriter{conn: conn, timeout: t.cfg.DeadAfter}
	if errors.Is(err, storage.ErrOutdated) {
		// This peer has as much: raft says so when it gets the message. Refused, the
		// checkpoint would be sent again and again.
		err = nil
	}
	if err != nil {
		// Who sent it learns why, if it still listens.
		_ = w.write(kindRefusal, []byte(err.Error()[:min(len(err.Error()), maxHelloBytes)]))
		return fmt.Errorf("receive checkpoint: %w", err)
	}
	m = replica.Received(m, meta)
	t.log.Info("received checkpoint from root peer", "peer", from.id.NodeID, "index", meta.Index, "bytes", meta.Bytes)
	t.receiver.Deliver(m)
	return w.write(kindReceived, nil)
}

// chunkReader is the bytes of a checkpoint that arrives in chunks. It ends with
// io.EOF only when the end frame agrees with everything before it.
type chunkReader struct {
	conn    net.Conn
	frames  *frameReader
	timeout time.Duration

	rest  []byte
	total uint64
	sum   uint32
	err   error // what every later Read returns
}

// Read implements io.Reader.
func (r *chunkReader) Read(b []byte) (int, error) {
	for len(r.rest) == 0 && r.err == nil {
		r.err = r.fetch()
	}
	if len(r.rest) == 0 {
		return 0, r.err
	}
	n := copy(b, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

func (r *chunkReader) fetch() error {
	if err := r.conn.SetReadDeadline(time.Now().Add(r.timeout)); err != nil {
		return err
	}
	k, payload, err := r.frames.next()
	switch {
	case errors.Is(err, io.EOF):
		return io.ErrUnexpectedEOF // The stream may end only behind an end frame.
	case err != nil:
		return err
	case k == kindChunk:
		r.rest = payload
		r.total += uint64(len(payload))
		r.sum = crc32.Update(r.sum, castagnoli, payload)
		return nil
	case k == kindEnd && len(payload) == 12:
		if total, sum := binary.BigEndian.Uint64(payload), binary.BigEndian.Uint32(payload[8:]); total != r.total || sum != r.sum {
			return fmt.Errorf("checkpoint of %d bytes with checksum %08x arrived as %d bytes with %08x", total, sum, r.total, r.sum)
		}
		return io.EOF
	}
	return fmt.Errorf("frame of kind %d in a checkpoint", k)
}
