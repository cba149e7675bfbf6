package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/router"
)

// Registry gives keys to members and takes them away: what PickAndRegister and
// LookupAndDeregister need besides a router. NewRegistry makes one.
type Registry interface {
	// Pick chooses a member that takes regions of the keyspace, for one that is to come.
	// client.ErrNoActiveMembers: there is none.
	Pick(ctx context.Context, keyspace string) (router.Target, error)
	// Bind gives the key to the member, durably. A key that another one has is an error.
	Bind(ctx context.Context, keyspace string, key []byte, to router.Target) error
	// Unbind takes the key away from the member that ended what it stands for: the region
	// that the request went to. That it is gone by now, or another region, is no error. The
	// zero Target: takes it away if no owner lives, and is ErrOwned if one does.
	Unbind(ctx context.Context, keyspace string, key []byte, from router.Target) error
}

// ErrOwned is the error of Registry.Unbind of a key that was to be nobody's.
var ErrOwned = errors.New("an owner of the key lives")

// NewRegistry makes the Registry of a control plane, for keyspaces of points. It picks among
// the members that are connected, by a list that is a second old at most: the one of two
// taken at random that has fewer regions.
func NewRegistry(c *client.Client) Registry { return &registry{c: c} }

type registry struct {
	c *client.Client

	mu sync.Mutex
	// Guarded by mu.
	listed  time.Time
	members []choice
}

// choice is a member that may be picked.
type choice struct {
	target router.Target
	// regions that it had when it was listed, and was picked for since.
	regions uint64
}

// listFor is how long a list of members is used.
const listFor = time.Second

// Pick implements Registry.
func (g *registry) Pick(ctx context.Context, keyspace string) (router.Target, error) {
	if t, ok := g.choose(nil); ok {
		return t, nil
	}
	var members []choice
	for s, err := range g.c.ListMembers(ctx, client.In(keyspace)) {
		if err != nil {
			return router.Target{}, err
		}
		m := s.GetMember()
		if s.GetConnected() && m.GetState() == rootv1.MemberState_MEMBER_STATE_ACTIVE && m.GetAddress() != "" {
			members = append(members, choice{router.Target{Member: rooted.MemberID(m.GetId()), Address: m.GetAddress(), Incarnation: m.GetIncarnation()}, s.GetOwnedRegions()})
		}
	}
	if t, ok := g.choose(members); ok {
		return t, nil
	}
	return router.Target{}, &client.Error{Op: "Pick", Reason: rootv1.Reason_REASON_NO_ACTIVE_MEMBERS, Cause: errors.New("no member is active and connected: start one")}
}

// choose takes one of a list, or of the one that is kept.
func (g *registry) choose(list []choice) (router.Target, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if list != nil {
		g.members, g.listed = list, time.Now()
	}
	n := len(g.members)
	if n == 0 || time.Since(g.listed) > listFor {
		return router.Target{}, false
	}
	c := &g.members[rand.IntN(n)]
	if n > 1 {
		other := rand.IntN(n - 1)
		if &g.members[other] == c {
			other = n - 1
		}
		if o := &g.members[other]; o.regions < c.regions {
			c = o
		}
	}
	c.regions++
	return c.target, true
}

// Bind implements Registry.
func (g *registry) Bind(ctx context.Context, keyspace string, key []byte, to router.Target) error {
	ks, err := g.c.GetKeyspace(ctx, keyspace)
	if err != nil {
		return err
	}
	_, err = g.c.PublishEvent(ctx, &rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{
		KeyspaceId: ks.GetKeyspace().GetId(), StartKey: key, Owners: []*rootv1.Owner{{MemberId: string(to.Member), Incarnation: to.Incarnation}},
	}}}})
	return err
}

// Unbind implements Registry.
func (g *registry) Unbind(ctx context.Context, keyspace string, key []byte, from router.Target) error {
	for {
		route, err := g.c.GetRegionByKey(ctx, key, client.In(keyspace), client.Strong())
		if errors.Is(err, client.ErrNotFound) || err == nil && from.Member != "" && !same(&route, &from) {
			return nil
		}
		if err != nil {
			return err
		}
		if from.Member == "" && router.Lives(&route) {
			return ErrOwned
		}
		// Under the epoch that was looked at: whoever was given it since is looked at too.
		if _, err = g.c.RemoveRegion(ctx, route.Region.ID, route.Region.Epoch); !errors.Is(err, client.ErrEpochStale) {
			return err
		}
	}
}

// same says whether a key is in the region that a request went to.
func same(route *client.Route, from *router.Target) bool {
	if from.Region != nil {
		return route.Region.ID == from.Region.ID
	}
	return slices.ContainsFunc(route.Region.Owners, func(o rooted.Owner) bool { return o.Member == from.Member })
}

// Made says how a member answers that has made something, and what its key is.
type Made struct {
	// Status that says so. Default 201.
	Status int
	// Key of it. Default: ResponseField("id").
	Key func(*http.Response) ([]byte, error)
}

// ResponseHeader takes the key from a header of the answer.
func ResponseHeader(name string) func(*http.Response) ([]byte, error) {
	return func(resp *http.Response) ([]byte, error) {
		return only("header "+name+" of the answer", resp.Header.Values(name))
	}
}

// ResponseField takes the key from a text at the top of the answer, a JSON object of
// at most 64 KiB.
func ResponseField(name string) func(*http.Response) ([]byte, error) {
	const most = 64 << 10
	return func(resp *http.Response) ([]byte, error) {
		raw, err := io.ReadAll(io.LimitReader(resp.Body, most+1))
		if err != nil {
			return nil, fmt.Errorf("half an answer came: %w", err)
		}
		if len(raw) > most {
			return nil, fmt.Errorf("the answer has more than %d bytes", most)
		}
		_ = resp.Body.Close()
		resp.Body = io.NopCloser(bytes.NewReader(raw))
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(raw, &fields); err != nil {
			return nil, fmt.Errorf("the answer is no JSON object: %w", err)
		}
		var key string
		if err := json.Unmarshal(fields[name], &key); err != nil || key == "" {
			return nil, fmt.Errorf("the answer has no text %q", name)
		}
		return []byte(key), nil
	}
}

// PickAndRegister passes requests on to any member, and gives it the key that its answer
// names, if that has the expected status, before the caller has the answer. 503: there
// is no member.
func (p *Proxy) PickAndRegister(made Made) http.Handler {
	if made.Status == 0 {
		made.Status = http.StatusCreated
	}
	if made.Key == nil {
		made.Key = ResponseField("id")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.serve(w, r, func(x *exchange, r *http.Request) (err error) {
			if p.cfg.Registry == nil {
				return unset("Registry")
			}
			if err = p.admit(x, r, rootv1.Verb_VERB_PUBLISH); err != nil {
				return err
			}
			if x.target, err = p.cfg.Registry.Pick(r.Context(), p.keyspace[0]); err != nil {
				return err
			}
			x.fixed, x.tag = true, UpstreamError
			x.answered = func(resp *http.Response) (err error) {
				if resp.StatusCode != made.Status {
					return nil
				}
				late := time.AfterFunc(p.cfg.Timeout, func() { _ = resp.Body.Close() })
				defer late.Stop()
				if x.key, err = made.Key(resp); err == nil && (len(x.key) == 0 || len(x.key) > rooted.MaxKeyBytes) {
					err = fmt.Errorf("it has %d bytes, not 1 to %d", len(x.key), rooted.MaxKeyBytes)
				}
				if err != nil {
					return &notBound{fmt.Sprintf("member %q has made something whose key cannot be read", x.target.Member), err}
				}
				if err := p.cfg.Registry.Bind(r.Context(), p.keyspace[0], x.key, x.target); err != nil {
					return &notBound{fmt.Sprintf("member %q has made %.80q, which could not be given to it", x.target.Member, x.key), err}
				}
				x.tag = Spawned
				return nil
			}
			return p.pass(x, r)
		})
	})
}

// LookupAndDeregister passes requests on to the owner of their key, and takes it away
// from it when the answer has the expected status; 0: 204. Where no owner lives, it is
// taken away at once, and the answer is that status.
func (p *Proxy) LookupAndDeregister(status int) http.Handler {
	if status == 0 {
		status = http.StatusNoContent
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.serve(w, r, func(x *exchange, r *http.Request) (err error) {
			if p.cfg.Registry == nil {
				return unset("Registry")
			}
			if err = p.admit(x, r, rootv1.Verb_VERB_PUBLISH); err != nil {
				return err
			}
			if x.key, err = p.keyOf(r); err != nil {
				return err
			}
			x.options.ReassignOrphans = false
			_, err = p.cfg.Router.Resolve(r.Context(), x.key, x.options)
			if dead(err) {
				switch err = p.cfg.Registry.Unbind(r.Context(), p.keyspace[0], x.key, router.Target{}); {
				case err == nil:
					x.tag = DeregisteredDeadPod
					x.WriteHeader(status)
					return nil
				case errors.Is(err, ErrOwned): // it was given to another one, who is asked
					x.options.ReassignOrphans, err = true, nil
				}
			}
			if err != nil {
				return err
			}
			x.tag = UpstreamError
			x.answered = func(resp *http.Response) error {
				if resp.StatusCode != status {
					return nil
				}
				if err := p.cfg.Registry.Unbind(r.Context(), p.keyspace[0], x.key, x.target); err != nil {
					return &notBound{fmt.Sprintf("member %q has ended %.80q, which could not be taken away from it", x.target.Member, x.key), err}
				}
				x.tag = Deregistered
				return nil
			}
			return p.pass(x, r)
		})
	})
}

// dead says that a key has owners of which none lives.
func dead(err error) bool {
	said, ok := errors.AsType[*client.Error](err)
	return ok && (said.Reason == rootv1.Reason_REASON_UNHEALTHY_MEMBER || said.Reason == rootv1.Reason_REASON_NO_ACTIVE_MEMBERS)
}
