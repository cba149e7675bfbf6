package client

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nokv/nokv/mtls"
	"google.golang.org/grpc"
)

// Config says how a Client finds and uses coordinators. Only Endpoints must be
// set; the zero value of every other field means its default.
type Config struct {
	// Endpoints are gRPC addresses of coordinators, host:port, 1 to 64. They are
	// tried in this order and never dropped. An address with a scheme
	// ("dns:///name:port", "unix:path") goes to gRPC as it is, and with DialOptions
	// it may be any name that their dialer knows.
	Endpoints []string
	// Shuffle puts Endpoints into a random order, so that many clients with the
	// same list spread over the coordinators.
	Shuffle bool
	// DiscoverEvery is the time between looks for other coordinators through
	// ListCoordinators. 0: only Discover looks.
	DiscoverEvery time.Duration
	// ClusterID is the cluster that is meant. 0: the cluster of the first answer.
	ClusterID uint64

	// DefaultTimeout bounds a call whose context has no deadline, and the wait of
	// a merged request: while no coordinator answers, callers that joined late in
	// it and have no deadline of their own are told earlier. Default 10 s.
	DefaultTimeout time.Duration
	// TryTimeout is how long one coordinator may say nothing before it is given
	// up. Reads ask another one as well after 100 ms, or half of this if that is
	// less. Default 1 s.
	TryTimeout time.Duration
	// BackoffMin and BackoffMax bound the pause after a round in which no
	// coordinator could help. The pause doubles from round to round, and half
	// of it is random. For about a second in which coordinators answer that the
	// Tenure is vacant it stays at BackoffMin and below. Defaults 20 ms and 1 s.
	BackoffMin, BackoffMax time.Duration
	// WatchSilence is how long a watch may bring nothing before it is resumed
	// at the next coordinator. Default 30 s.
	WatchSilence time.Duration

	// TLS shows this process's certificate and wants one of a coordinator, on every
	// connection. nil: plain connections.
	TLS *mtls.Source
	// DialOptions are applied last to every connection.
	DialOptions []grpc.DialOption
	// Logger gets changes of coordinator at Info and retries at Debug. nil: none.
	Logger hclog.Logger
}

// MaxEndpoints is the most endpoints a Config may list.
const MaxEndpoints = 64

// Validate says what is wrong with a Config. Zero values are not wrong.
func (c Config) Validate() error {
	if len(c.Endpoints) == 0 {
		return errors.New("client config: Endpoints is empty: name at least one coordinator, host:port")
	}
	if len(c.Endpoints) > MaxEndpoints {
		return fmt.Errorf("client config: %d Endpoints are more than %d", len(c.Endpoints), MaxEndpoints)
	}
	for i, e := range c.Endpoints {
		if e == "" {
			return fmt.Errorf("client config: Endpoints[%d] is empty", i)
		}
		if slices.Contains(c.Endpoints[:i], e) {
			return fmt.Errorf("client config: endpoint %q is listed twice", e)
		}
		if !hasScheme(e) && len(c.DialOptions) == 0 && !isHostPort(e) {
			return fmt.Errorf("client config: endpoint %q: want host:port, such as 10.0.0.1:2379", e)
		}
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"DiscoverEvery", c.DiscoverEvery},
		{"DefaultTimeout", c.DefaultTimeout},
		{"TryTimeout", c.TryTimeout},
		{"BackoffMin", c.BackoffMin},
		{"BackoffMax", c.BackoffMax},
		{"WatchSilence", c.WatchSilence},
	} {
		if d.value < 0 {
			return fmt.Errorf("client config: %s is negative: %v", d.name, d.value)
		}
	}
	full := c.withDefaults()
	if full.BackoffMax < full.BackoffMin {
		return fmt.Errorf("client config: BackoffMax %v is below BackoffMin %v", full.BackoffMax, full.BackoffMin)
	}
	return nil
}

// hasScheme says whether an address is one that gRPC reads by itself.
func hasScheme(address string) bool {
	return strings.Contains(address, "://") || strings.HasPrefix(address, "unix:")
}

func isHostPort(address string) bool {
	host, port, err := net.SplitHostPort(address)
	number, bad := strconv.ParseUint(port, 10, 16)
	return err == nil && bad == nil && number > 0 && !strings.ContainsAny(host, " /")
}

func (c Config) withDefaults() Config {
	orElse := func(d *time.Duration, value time.Duration) {
		if *d == 0 {
			*d = value
		}
	}
	orElse(&c.DefaultTimeout, 10*time.Second)
	orElse(&c.TryTimeout, time.Second)
	orElse(&c.BackoffMin, 20*time.Millisecond)
	orElse(&c.BackoffMax, max(time.Second, c.BackoffMin))
	orElse(&c.WatchSilence, 30*time.Second)
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	return c
}
