package grpcroute

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/router"
)

// Config says how calls find their owners. Only Router must be set.
type Config struct {
	// Router finds owners. It is the caller's, who runs it. Which of several owners of a
	// key is called is its to choose.
	Router *router.Router
	// Key is the key of a call: of its full method, and its message, which of a stream is
	// the first that is sent. It may return nil: then it is that of WithKey, or of the
	// metadata MetadataKey, as it is of a stream that is closed without a message. Its
	// error is told to the caller.
	Key func(ctx context.Context, method string, message any) ([]byte, error)
	// ClaimOnMiss has regions made of keys that have none; without it that is NOT_FOUND.
	ClaimOnMiss bool
	// Idempotent says of full methods whether they may be run twice. nil: none may, but for
	// those whose retryPolicy lists UNAVAILABLE.
	Idempotent func(method string) bool

	// TLS dials members with certificates. nil: without, unless options of gRPC say how.
	TLS *mtls.Source
	// Dial bounds how long a call waits for a connection to one member. Default 1 s.
	Dial time.Duration
	// Hold is how long a call that was not run is kept for its owner. Default 5 s.
	Hold time.Duration
	// MaxMembers is how many members are connected at most. Default 4,096.
	MaxMembers int
	// IdleFor is after how long a connection ends that nobody uses. Default 5 min.
	IdleFor time.Duration
	// MaxReplay is how many bytes of the messages of one stream are kept to be sent again.
	// Default 64 KiB; -1: none.
	MaxReplay int
}

// Validate says what is wrong with a Config. Zero values are not wrong, but that of Router.
func (c Config) Validate() error {
	switch {
	case c.Router == nil:
		return errors.New("grpcroute config: Router is nil: make one with router.New")
	case c.MaxMembers < 0 || c.MaxReplay < -1:
		return errors.New("grpcroute config: MaxMembers and MaxReplay are 0 for their default, or more than 0; MaxReplay may be -1")
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"Dial", c.Dial}, {"Hold", c.Hold}, {"IdleFor", c.IdleFor}} {
		if d.value < 0 {
			return fmt.Errorf("grpcroute config: %s is negative: %v", d.name, d.value)
		}
	}
	return nil
}

func (c Config) withDefaults() Config {
	for _, d := range []struct {
		value *time.Duration
		is    time.Duration
	}{{&c.Dial, time.Second}, {&c.Hold, 5 * time.Second}, {&c.IdleFor, 5 * time.Minute}} {
		if *d.value == 0 {
			*d.value = d.is
		}
	}
	if c.MaxMembers == 0 {
		c.MaxMembers = 4096
	}
	if c.MaxReplay == 0 {
		c.MaxReplay = 64 << 10
	}
	return c
}
