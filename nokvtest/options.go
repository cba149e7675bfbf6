package nokvtest

import (
	"cmp"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"

	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// The most processes of a kind in a cluster.
const (
	maxRoots        = 5
	maxCoordinators = 16
)

// An Option says what Start starts.
type Option func(*options)

type options struct {
	roots, coordinators int
	ttl                 time.Duration
	loopback            bool
	keyspaces           []keyspace
	logger              hclog.Logger
}

type keyspace struct {
	name, preset string
	settings     *rootv1.KeyspaceSettings
}

// Roots is how many root peers there are: 1 to 5. Default 1.
func Roots(n int) Option { return func(o *options) { o.roots = n } }

// Coordinators is how many coordinators there are: 1 to 16. Default 1.
func Coordinators(n int) Option { return func(o *options) { o.coordinators = n } }

// TenureTTL is the -tenure-ttl of coordinators. Default 0: every answer is confirmed, and who
// takes over waits for nothing.
func TenureTTL(ttl time.Duration) Option { return func(o *options) { o.ttl = ttl } }

// Keyspace makes a keyspace from a preset ("" for none) and, if given, settings that replace
// the preset's.
func Keyspace(name, preset string, settings ...*rootv1.KeyspaceSettings) Option {
	return func(o *options) {
		k := keyspace{name: name, preset: preset}
		if len(settings) > 0 {
			k.settings = settings[0]
		}
		o.keyspaces = append(o.keyspaces, k)
	}
}

// Loopback has coordinators listen on ports of 127.0.0.1 too, for processes beside the test:
// commands, and programs in other languages. It does not work inside a synctest bubble, and
// faults do not reach what comes in there; the end of a coordinator does.
func Loopback() Option { return func(o *options) { o.loopback = true } }

// Logger hears what all processes log. Default: nobody does.
func Logger(l hclog.Logger) Option { return func(o *options) { o.logger = l } }

func newOptions(list []Option) (*options, error) {
	o := &options{roots: 1, coordinators: 1, logger: hclog.NewNullLogger()}
	for _, set := range list {
		set(o)
	}
	o.logger = cmp.Or(o.logger, hclog.NewNullLogger())
	switch {
	case o.roots < 1 || o.roots > maxRoots:
		return nil, fmt.Errorf("Roots(%d): want 1 to %d", o.roots, maxRoots)
	case o.coordinators < 1 || o.coordinators > maxCoordinators:
		return nil, fmt.Errorf("Coordinators(%d): want 1 to %d", o.coordinators, maxCoordinators)
	case o.ttl < 0:
		return nil, fmt.Errorf("TenureTTL(%v): want 0 or more", o.ttl)
	}
	return o, nil
}
