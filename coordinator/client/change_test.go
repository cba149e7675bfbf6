package client_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/nokv/nokv/coordinator/client"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// memory is a root that remembers the identities of commands from an index on.
type memory struct {
	mu      sync.Mutex
	log     []*rootv1.Command // applied; the index of the first is 1
	applied map[[2]uint64]uint64
	forgot  uint64 // what was first sent before is not recognised
	asked   []*rootv1.CommandIdentity
}

func (m *memory) apply(cmd *rootv1.Command) *rootv1.CommandResult {
	m.mu.Lock()
	defer m.mu.Unlock()
	id := cmd.GetIdentity()
	m.asked = append(m.asked, id)
	key := [2]uint64{id.GetOrigin(), id.GetSequence()}
	if at := m.applied[key]; at > m.forgot {
		return &rootv1.CommandResult{Outcome: rootv1.Outcome_OUTCOME_APPLIED, Repetition: true, Token: m.at(at)}
	}
	if id.GetKnownIndex() < m.forgot {
		return &rootv1.CommandResult{Outcome: rootv1.Outcome_OUTCOME_REJECTED, Token: m.at(m.last()), Error: &rootv1.ErrorDetail{
			Reason: rootv1.Reason_REASON_OUTCOME_UNKNOWN, Message: "too old", CurrentToken: m.at(m.last()),
		}}
	}
	m.log = append(m.log, cmd)
	m.applied[key] = m.last()
	return &rootv1.CommandResult{Outcome: rootv1.Outcome_OUTCOME_APPLIED, Token: m.at(m.last())}
}

func (m *memory) last() uint64 { return m.forgot + uint64(len(m.log)) }

func (m *memory) at(index uint64) *rootv1.RootToken {
	return &rootv1.RootToken{Incarnation: 1, Term: 1, Index: index}
}

// changes are the ways to change something.
var changes = map[string]func(context.Context, *client.Client) error{
	"RemoveRegion": func(ctx context.Context, c *client.Client) error {
		_, err := c.RemoveRegion(ctx, 1, rooted.Epoch{})
		return err
	},
	"Publish": func(ctx context.Context, c *client.Client) error {
		_, err := c.PublishEvent(ctx, removal(1))
		return err
	},
}

// A change whose answer is lost is asked for again under the same identity, at
// whatever coordinator; another change has another one.
func TestARepetitionKeepsItsIdentity(t *testing.T) {
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, k := newWorld(t), newCluster(7)
				k.log.Store(41)
				m := &memory{applied: map[[2]uint64]uint64{}}
				w.start("a", &losing{fake: &fake{cluster: k}, take: func(cmd *rootv1.Command) { m.apply(cmd) }})
				w.start("b", &fake{cluster: k, commit: m.apply})
				c, end := w.client(client.Config{}, "a", "b")
				defer end()
				must(t, change(t.Context(), c))
				must(t, change(t.Context(), c))
				if len(m.log) != 2 || len(m.asked) < 3 {
					t.Fatalf("%d changes applied of %d asked for, want 2 of 3 or more", len(m.log), len(m.asked))
				}
				if first := m.asked[0]; first.GetOrigin() == 0 || first.GetSequence() == 0 || first.GetKnownIndex() != 41 || m.asked[1].GetSequence() != first.GetSequence() {
					t.Errorf("asked as %v, then as %v, knowing 41", first, m.asked[1])
				}
			})
		})
	}
}

// What a client sends is recognised also when it was idle for so long that the
// root has forgotten what came since: it asks once more, knowing more.
func TestAnIdleClientsChange(t *testing.T) {
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, k := newWorld(t), newCluster(7)
				k.log.Store(41)
				m := &memory{applied: map[[2]uint64]uint64{}, forgot: 1000}
				w.start("a", &fake{cluster: k, commit: m.apply})
				c, end := w.client(client.Config{}, "a")
				defer end()
				must(t, change(t.Context(), c))
				if len(m.log) != 1 || len(m.asked) != 2 || m.asked[1].GetKnownIndex() < 1000 || m.asked[1].GetSequence() == m.asked[0].GetSequence() {
					t.Errorf("applied %d, asked %v", len(m.log), m.asked)
				}
			})
		})
	}
}

// When a try may have arrived and the root cannot tell any more, nobody knows:
// the change is not made a second time.
func TestAForgottenTryIsUnknown(t *testing.T) {
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, k := newWorld(t), newCluster(7)
				m := &memory{applied: map[[2]uint64]uint64{}}
				w.start("a", &losing{fake: &fake{cluster: k}, take: func(cmd *rootv1.Command) {
					m.apply(cmd)
					m.mu.Lock()
					m.forgot = 1000
					m.mu.Unlock()
				}})
				w.start("b", &fake{cluster: k, commit: m.apply})
				c, end := w.client(client.Config{}, "a", "b")
				defer end()
				wantIs(t, change(t.Context(), c), client.ErrOutcomeUnknown)
				if len(m.log) != 1 {
					t.Errorf("the change was applied %d times", len(m.log))
				}
			})
		})
	}
}

// So it is when the change was the second of a stream that had served before.
func TestAForgottenTryOnAServingStreamIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, k := newWorld(t), newCluster(7)
		m := &memory{applied: map[[2]uint64]uint64{}}
		w.start("a", &losing{fake: &fake{cluster: k}, answer: m.apply, take: func(cmd *rootv1.Command) {
			m.apply(cmd)
			m.mu.Lock()
			m.forgot = 1000
			m.mu.Unlock()
		}})
		w.start("b", &fake{cluster: k, commit: m.apply})
		c, end := w.client(client.Config{}, "a", "b")
		defer end()
		must(t, changes["Publish"](t.Context(), c))
		wantIs(t, changes["Publish"](t.Context(), c), client.ErrOutcomeUnknown)
		if len(m.log) != 2 {
			t.Errorf("%d changes were applied, want one each", len(m.log))
		}
	})
}

// An identity that a caller made is the one that is sent.
func TestACallersIdentityIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		m := &memory{applied: map[[2]uint64]uint64{}}
		w.start("a", &fake{cluster: newCluster(7), commit: m.apply})
		c, end := w.client(client.Config{}, "a")
		defer end()
		mine := &rootv1.CommandIdentity{Origin: 77, Sequence: 5, KnownIndex: 3}
		for range 2 {
			if _, err := c.Publish(t.Context(), &rootv1.Command{Events: []*rootv1.Event{removal(1)}, Identity: mine}); err != nil {
				t.Fatal(err)
			}
		}
		if len(m.log) != 1 || len(m.asked) != 2 || !proto.Equal(m.asked[0], mine) || !proto.Equal(m.asked[1], mine) {
			t.Errorf("applied %d, asked as %v", len(m.log), m.asked)
		}
	})
}

// losing is a coordinator that passes changes on and answers none, or the first of
// a stream alone.
type losing struct {
	*fake
	take   func(*rootv1.Command)
	answer func(*rootv1.Command) *rootv1.CommandResult
}

var errLost = status.Error(codes.Unavailable, "the connection broke")

func (l *losing) RemoveRegion(_ context.Context, req *coordinatorv1.RemoveRegionRequest) (*coordinatorv1.RemoveRegionResponse, error) {
	l.take(&rootv1.Command{Events: []*rootv1.Event{removal(req.GetRegionId())}, Identity: req.GetIdentity()})
	return nil, errLost
}

func (l *losing) PublishStream(s publishServer) error {
	req, err := s.Recv()
	if err == nil && l.answer != nil {
		reply := &coordinatorv1.PublishRootEventsResponse{RequestId: req.GetRequestId()}
		for _, cmd := range req.GetCommands() {
			reply.Results = append(reply.Results, l.answer(cmd))
		}
		if err = s.Send(reply); err == nil {
			req, err = s.Recv()
		}
	}
	if err != nil {
		return err
	}
	for _, cmd := range req.GetCommands() {
		l.take(cmd)
	}
	return errLost
}
