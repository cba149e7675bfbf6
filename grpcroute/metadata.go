package grpcroute

import (
	"context"
	"fmt"
	"strconv"

	"google.golang.org/grpc/metadata"

	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/member"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/router"
)

// Metadata of calls. Callers set a key; NewClient's calls have all of them. They are the
// headers of package proxy.
const (
	MetadataKey       = "nokv-key"     // a key of printable ASCII
	MetadataKeyBinary = "nokv-key-bin" // any other
	MetadataKeyspace  = "nokv-keyspace"
	MetadataRegion    = "nokv-region"
	MetadataEpoch     = "nokv-epoch" // VERSION.CONF_VERSION
	// MetadataRefused is once in the trailers of a call that a member refused: Refusal.Word.
	MetadataRefused = "nokv-refused"
)

type keyOfCall struct{}

// WithKey has the calls with a context be for a key, which is not copied.
func WithKey(ctx context.Context, key []byte) context.Context {
	return context.WithValue(ctx, keyOfCall{}, key)
}

// keyFrom is the key in a caller's context.
func keyFrom(ctx context.Context, md metadata.MD) ([]byte, error) {
	if key, ok := ctx.Value(keyOfCall{}).([]byte); ok {
		return key, nil
	}
	return keyIn(md)
}

// keyIn is the key in metadata.
func keyIn(md metadata.MD) ([]byte, error) {
	text, binary := md[MetadataKey], md[MetadataKeyBinary]
	if len(text)+len(binary) != 1 {
		return nil, fmt.Errorf("want the key of the call in %s or %s, once; there are %d", MetadataKey, MetadataKeyBinary, len(text)+len(binary))
	}
	if len(text) == 1 {
		return []byte(text[0]), nil
	}
	return []byte(binary[0]), nil
}

// address replaces what metadata says of the target of a call.
func address(md metadata.MD, keyspace, key []string, binary bool, t *router.Target) {
	delete(md, MetadataKey)
	delete(md, MetadataKeyBinary)
	if md[MetadataKey] = key; binary {
		delete(md, MetadataKey)
		md[MetadataKeyBinary] = key
	}
	md[MetadataKeyspace] = keyspace
	md[MetadataEpoch] = []string{t.Epoch.String()}
	delete(md, MetadataRegion)
	if t.Region != nil {
		md[MetadataRegion] = []string{strconv.FormatUint(uint64(t.Region.ID), 10)}
	}
}

// printable says whether a key can be in metadata as it is.
func printable(key []byte) bool {
	for _, c := range key {
		if c <= ' ' || c > '~' { // spaces at the ends would be lost
			return false
		}
	}
	return true
}

func invalid(format string, args ...any) error {
	return reason.New(rootv1.Reason_REASON_INVALID_REQUEST, format, args...).GRPCStatus().Err()
}

// requestOf is what a call asks of a member.
func requestOf(ctx context.Context) (member.Request, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	key, err := keyIn(md)
	if err != nil {
		return member.Request{}, invalid("%v", err)
	}
	if len(key) == 0 || len(key) > rooted.MaxKeyBytes {
		return member.Request{}, invalid("the key has %d bytes, not 1 to %d", len(key), rooted.MaxKeyBytes)
	}
	said := md[MetadataEpoch]
	if len(said) != 1 {
		return member.Request{}, invalid("want the epoch of the caller's route in %s, once; there are %d", MetadataEpoch, len(said))
	}
	epoch, err := router.ParseEpoch(said[0])
	if err != nil || epoch == (rooted.Epoch{}) {
		return member.Request{}, invalid("metadata %s is %.64q: want VERSION.CONF_VERSION of a route", MetadataEpoch, said[0])
	}
	req := member.Request{Key: key, Epoch: epoch}
	keyspace := md[MetadataKeyspace]
	if len(keyspace) != 1 {
		return member.Request{}, invalid("want the keyspace in %s, once; there are %d", MetadataKeyspace, len(keyspace))
	}
	req.Keyspace = keyspace[0]
	if said = md[MetadataRegion]; len(said) > 0 {
		id, err := strconv.ParseUint(said[0], 10, 64)
		if err != nil || len(said) > 1 {
			return member.Request{}, invalid("metadata %s is %.64q: want the number of one region", MetadataRegion, said)
		}
		req.Region = rooted.RegionID(id)
	}
	return req, nil
}
