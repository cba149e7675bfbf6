package server

import (
	"strconv"
	"sync"
	"time"

	"github.com/nokv/nokv/coordinator/catalog"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// lookup is what GetRegionByKeyRequest and GetRegionsByKeysRequest have in
// common, read without copying: keys and keyspace point into buf.
type lookup struct {
	keyspace string
	read     *coordinatorv1.ReadOptions
	options  coordinatorv1.ReadOptions // read points here
	buf      mem.Buffer
}

// take reads a field that both requests have. The caller consumed it.
func (l *lookup) take(num protowire.Number, value []byte) error {
	switch num {
	case 2:
		l.keyspace = internKeyspace(value)
	case 3:
		l.read = &l.options
		return (proto.UnmarshalOptions{Merge: true}).Unmarshal(value, &l.options)
	}
	return nil
}

// internKeyspace makes a string of a name without an allocation for the one
// that most requests name.
func internKeyspace(name []byte) string {
	if string(name) == catalog.DefaultKeyspace {
		return catalog.DefaultKeyspace
	}
	return string(name)
}

func (l *lookup) release() {
	if l.buf != nil {
		l.buf.Free()
		l.buf = nil
	}
	if l.read != nil {
		proto.Reset(&l.options)
		l.read = nil
	}
	l.keyspace = ""
}

// bytesFields calls f for the length-delimited fields among those of a message
// and skips others.
func bytesFields(data []byte, f func(num protowire.Number, value []byte) error) error {
	return fields(data, func(num protowire.Number, typ protowire.Type, value []byte) (int, error) {
		if typ != protowire.BytesType {
			return protowire.ConsumeFieldValue(num, typ, value), nil
		}
		v, n := protowire.ConsumeBytes(value)
		if n < 0 {
			return n, nil
		}
		return n, f(num, v)
	})
}

// keyRequest is a GetRegionByKeyRequest.
type keyRequest struct {
	lookup
	key []byte
}

func (r *keyRequest) decode(buf mem.Buffer) error {
	r.buf = buf
	return bytesFields(buf.ReadOnlyData(), func(num protowire.Number, value []byte) error {
		if num == 1 {
			r.key = value
			return nil
		}
		return r.take(num, value)
	})
}

// keysRequest is a GetRegionsByKeysRequest.
type keysRequest struct {
	lookup
	keys [][]byte
	id   uint64
	wait uint64 // in milliseconds
}

// size is what the request holds on to, in bytes.
func (r *keysRequest) size() int { return r.buf.Len() }

var keysRequests = sync.Pool{New: func() any { return new(keysRequest) }}

func (r *keysRequest) decode(buf mem.Buffer) error {
	r.buf = buf
	return fields(buf.ReadOnlyData(), func(num protowire.Number, typ protowire.Type, value []byte) (int, error) {
		switch typ {
		case protowire.VarintType:
			v, n := protowire.ConsumeVarint(value)
			switch num {
			case 4:
				r.id = v
			case 5:
				r.wait = v
			}
			return n, nil
		case protowire.BytesType:
			v, n := protowire.ConsumeBytes(value)
			switch {
			case n < 0:
				return n, nil
			case num != 1:
				return n, r.take(num, v)
			case len(r.keys) <= MaxKeys: // one above the limit is enough to refuse
				r.keys = append(r.keys, v)
			}
			return n, nil
		default:
			return protowire.ConsumeFieldValue(num, typ, value), nil
		}
	})
}

// patience is how long the answer may wait for the root, most at most.
func (r *keysRequest) patience(most time.Duration) time.Duration {
	if r.wait == 0 || r.wait > uint64(most.Milliseconds()) {
		return most
	}
	return time.Duration(r.wait) * time.Millisecond
}

func (r *keysRequest) release() {
	clear(r.keys)
	r.keys, r.id, r.wait = r.keys[:0], 0, 0
	r.lookup.release()
}

// free is release for a request of keysRequests.
func (r *keysRequest) free() {
	r.release()
	keysRequests.Put(r)
}

// check says what is wrong with the request.
func (r *keysRequest) check() error {
	if len(r.keys) == 0 {
		return invalid("keys", "there are none")
	}
	if len(r.keys) > MaxKeys {
		return invalidLimit("keys", uint64(len(r.keys)), MaxKeys)
	}
	for i, key := range r.keys {
		if len(key) == 0 || len(key) > MaxKeyBytes {
			return checkKey("keys["+strconv.Itoa(i)+"]", key)
		}
	}
	return checkKeyspace(r.keyspace)
}
