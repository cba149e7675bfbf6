package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/mtls"
	"github.com/nokv/nokv/router"
)

// Config says what a Proxy serves. Router and Key must be set.
type Config struct {
	// Router finds owners. It is the caller's, who runs it.
	Router *router.Router
	// Keyspace is one of the Router's. Empty: its first.
	Keyspace string
	// Key is that of a request; its error is told to the caller, with 400.
	Key Key
	// ClaimOnMiss has regions made of keys that have none; without it they are 404.
	ClaimOnMiss bool
	// Registry is what PickAndRegister and LookupAndDeregister change. nil: these refuse.
	Registry Registry
	// Pins finds the target of LookupLockAndProxy. nil: that refuses.
	Pins Pins
	// Callers judges who asks: for read, for claim where ClaimOnMiss has regions made, and for
	// publish where the Registry changes something. Members are told the name, in
	// router.HeaderCaller. nil: everybody may what the Router may, and members are not told.
	Callers Callers

	// TLS dials members with certificates, by https. nil: by http.
	TLS *mtls.Source
	// Dial bounds how long a connection to a member is waited for. Default 1 s.
	Dial time.Duration
	// Timeout bounds how long answers are waited for, to the end of their headers, of all members that are
	// asked for one request together; where the body is passed on as it comes, from the end of that. Default 30 s.
	Timeout time.Duration
	// Hold bounds how long a request that was not run is kept for its owner. Default 5 s.
	Hold time.Duration

	// MaxBody is the longest body of a request. Default 64 MiB; -1: any.
	MaxBody int64
	// BodyWithin bounds how long a body is read that is kept. Default 10 s.
	BodyWithin time.Duration
	// BodySilence bounds how long the next bytes of any other body are waited for: a caller
	// who sends none for so long is told 408. It ends where two sides may talk at once: with
	// the answer to a request of HTTP/2. Default 30 s.
	BodySilence time.Duration
	// MaxReplay is the longest body that is kept to be repeated, and MaxReplayTotal how
	// many bytes of all, counted as they come. Default 64 KiB and 64 MiB; -1: none.
	MaxReplay, MaxReplayTotal int64
	// TrustForwarded keeps X-Forwarded-For of callers, and adds to it: there is another
	// proxy in front.
	TrustForwarded bool

	// OnResult hears of every request when it is over, on its goroutine.
	OnResult func(Result)
	// Logger gets at Debug what broke. nil: none.
	Logger hclog.Logger

	// dial connects to members without TLS; nil: by the network.
	dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

// Result is what became of a request.
type Result struct {
	Request *http.Request
	// Tag is one of the constants below.
	Tag Tag
	Key []byte
	// Caller is ROLE/NAME of who asked, or nobody; empty without Config.Callers.
	Caller string
	// Target asked last; zero: none was.
	Target router.Target
	// Status that the caller was told; 0: none, the caller went away first.
	Status int
	// Tries are how many times it was sent to a member, or some of it.
	Tries int
	// Bytes of the answer's body that went to the caller, and of an upgraded connection.
	Bytes    int64
	Duration time.Duration
	// Err is why there was no whole answer of a member.
	Err error
}

// Tag is what became of a request, in a word that stays.
type Tag string

// The tags. Hit, OrphanReassigned and NotFound are those of lookups; Spawned,
// Unavailable and UpstreamError of PickAndRegister; Deregistered, DeregisteredDeadPod,
// NotFound and UpstreamError of LookupAndDeregister; Hit and NotFound of pins. BadRequest,
// Forbidden and Canceled may be of all.
const (
	Hit                 Tag = "hit"
	OrphanReassigned    Tag = "orphan_reassigned"
	NotFound            Tag = "not_found"
	Spawned             Tag = "spawned"
	Unavailable         Tag = "unavailable"
	UpstreamError       Tag = "upstream_error"
	Deregistered        Tag = "deregistered"
	DeregisteredDeadPod Tag = "deregistered_dead_pod"
	BadRequest          Tag = "bad_request"
	Forbidden           Tag = "forbidden"
	Canceled            Tag = "canceled"
)

// Tags are all of them.
var Tags = []Tag{Hit, OrphanReassigned, NotFound, Spawned, Unavailable, UpstreamError, Deregistered, DeregisteredDeadPod, BadRequest, Forbidden, Canceled}

// Validate says what is wrong with a Config. Zero values are not wrong, but those of
// Router and Key.
func (c Config) Validate() error {
	switch {
	case c.Router == nil:
		return errors.New("proxy config: Router is nil: make one with router.New")
	case c.Key == nil:
		return errors.New("proxy config: Key is nil: say where keys are, with Header, Query, Path or a function")
	case c.MaxBody < -1 || c.MaxReplay < -1 || c.MaxReplayTotal < -1:
		return errors.New("proxy config: MaxBody, MaxReplay and MaxReplayTotal are 0 for their default, -1, or more than 0")
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"Dial", c.Dial}, {"Timeout", c.Timeout}, {"Hold", c.Hold}, {"BodyWithin", c.BodyWithin}, {"BodySilence", c.BodySilence}} {
		if d.value < 0 {
			return fmt.Errorf("proxy config: %s is negative: %v", d.name, d.value)
		}
	}
	return nil
}

func (c Config) withDefaults() Config {
	for _, d := range []struct {
		value *time.Duration
		is    time.Duration
	}{
		{&c.Dial, time.Second},
		{&c.Timeout, 30 * time.Second},
		{&c.Hold, 5 * time.Second},
		{&c.BodyWithin, 10 * time.Second},
		{&c.BodySilence, 30 * time.Second},
	} {
		if *d.value == 0 {
			*d.value = d.is
		}
	}
	for _, n := range []struct {
		value *int64
		is    int64
	}{{&c.MaxBody, 64 << 20}, {&c.MaxReplay, 64 << 10}, {&c.MaxReplayTotal, 64 << 20}} {
		if *n.value == 0 {
			*n.value = n.is
		}
	}
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	return c
}
