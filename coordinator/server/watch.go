package server

import (
	"context"
	"errors"
	"time"

	"github.com/nokv/nokv/coordinator/rootview"
	"github.com/nokv/nokv/internal/reason"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// Pace and size of watch batches.
const (
	// watchHeartbeat is the longest silence of a watch.
	watchHeartbeat = time.Second
	// watchQuiet is the shortest time between two batches that only move the
	// token, when all changes concern other keyspaces.
	watchQuiet = 100 * time.Millisecond
	// watchBatchBytes is about where a batch of a snapshot ends.
	watchBatchBytes = 256 << 10
)

// WatchRegions implements coordinatorv1.CoordinatorServer.
func (s *Server) WatchRegions(req *coordinatorv1.WatchRegionsRequest, stream grpc.ServerStreamingServer[coordinatorv1.WatchRegionsResponse]) error {
	return s.run(stream.Context(), s.watchStreams, func(l *live) error {
		w := &watch{server: s, live: l, stream: stream}
		l.slow.Store(errSlowWatcher)
		return w.run(req)
	})
}

// watch is one stream of changes.
type watch struct {
	server *Server
	live   *live
	stream grpc.ServerStreamingServer[coordinatorv1.WatchRegionsResponse]
	// name and keyspace are what is watched; empty and 0: everything.
	name     string
	keyspace state.KeyspaceID
	sentAt   time.Time
}

func (w *watch) run(req *coordinatorv1.WatchRegionsRequest) error {
	v, err := w.server.serve(w.live.ctx, nil)
	if err != nil {
		return err
	}
	if err := checkKeyspace(req.GetKeyspace()); err != nil {
		return err
	}
	if w.name = req.GetKeyspace(); w.name != "" {
		keyspace, err := v.keyspace(w.name)
		if err != nil {
			return err
		}
		w.keyspace = state.KeyspaceID(keyspace.GetId())
	}
	after := state.TokenFromProto(req.GetAfter())
	if after.Index == 0 {
		if err := w.snapshot(v); err != nil {
			return err
		}
		after = v.view.Token
	} else if err := sameCluster(after, v.view); err != nil {
		return err
	}
	return w.follow(after)
}

// sameCluster refuses a position of another incarnation of the cluster.
func sameCluster(after state.Token, view *rootview.View) error {
	if after.Incarnation == view.Token.Incarnation {
		return nil
	}
	refused := reason.New(rootv1.Reason_REASON_CLUSTER_MISMATCH,
		"after: token %s is of another incarnation of the cluster; the view is at %s: start from a snapshot", after, view.Token)
	refused.Detail.CurrentToken = view.Token.Proto()
	return refused
}

// follow sends what changes behind a position, and signs of life.
func (w *watch) follow(after state.Token) error {
	reader := w.server.cfg.Views.Subscribe(after)
	for {
		w.live.received.Add(1) // a watcher is never idle
		from := reader.At()
		batch, err := w.next(reader)
		switch {
		case errors.Is(err, errQuiet):
			err = w.send(w.empty(reader.At()))
		case err == nil && batch.Snapshot, errors.Is(err, rootview.ErrSnapshotNeeded):
			err = reason.New(rootv1.Reason_REASON_BOOTSTRAP_REQUIRED,
				"the changes behind token %s are no longer kept here: watch again without a token", reader.At())
		case err == nil:
			err = w.forward(from, batch)
		}
		if err != nil {
			return err
		}
	}
}

// errSlowWatcher says that a watcher has to begin again: what it did not read
// is not kept for it.
var errSlowWatcher = reason.New(rootv1.Reason_REASON_BOOTSTRAP_REQUIRED,
	"the reader of this watch takes nothing: it was cut; watch again behind the last token, or without one")

// errQuiet says that it is time for a sign of life.
var errQuiet = errors.New("nothing changed")

// next waits for the next batch, but not longer than until the next sign of
// life: then it returns errQuiet.
func (w *watch) next(reader *rootview.Reader) (rootview.Batch, error) {
	ctx, cancel := context.WithTimeoutCause(w.live.ctx, watchHeartbeat-time.Since(w.sentAt), errQuiet)
	defer cancel()
	return reader.Next(ctx)
}

// forward sends what of a batch concerns this watch. What is too much for one
// message is cut; only the last part moves the token, so that a reader that
// resumes gets the whole again.
func (w *watch) forward(from state.Token, batch rootview.Batch) error {
	resp, bytes := w.empty(from), 0
	for i := range batch.Changes {
		bytes += w.add(resp, &batch.Changes[i])
		if bytes >= watchBatchBytes {
			if err := w.send(resp); err != nil {
				return err
			}
			resp, bytes = w.empty(from), 0
		}
	}
	resp.Token, resp.Era = batch.Token.Proto(), uint64(batch.Era)
	if bytes == 0 && time.Since(w.sentAt) < watchQuiet {
		return nil
	}
	return w.send(resp)
}

// add puts a change into a batch if it concerns this watch, and returns about
// how many bytes it takes.
func (w *watch) add(resp *coordinatorv1.WatchRegionsResponse, c *state.Change) int {
	switch {
	case c.Kind == state.ChangeRegion && (w.name == "" || c.Region.Keyspace == w.keyspace):
		resp.Changes = append(resp.Changes, &coordinatorv1.RegionChange{Region: c.Region.Proto(), Removed: c.Removed})
		return regionBytes(c.Region)
	case c.Kind == state.ChangeKeyspace && (w.name == "" || c.Keyspace.GetName() == w.name):
		w.follows(c)
		resp.Keyspaces = append(resp.Keyspaces, &coordinatorv1.KeyspaceChange{Keyspace: c.Keyspace, Removed: c.Removed})
		return proto.Size(c.Keyspace)
	case c.Kind == state.ChangeMember:
		resp.Members = append(resp.Members, c.Member)
		return proto.Size(c.Member)
	default:
		return 0
	}
}

// follows keeps to a name whose keyspace was made anew.
func (w *watch) follows(c *state.Change) {
	if w.name != "" && !c.Removed {
		w.keyspace = state.KeyspaceID(c.Keyspace.GetId())
	}
}

// empty is a batch without changes.
func (w *watch) empty(at state.Token) *coordinatorv1.WatchRegionsResponse {
	view := w.server.view()
	return &coordinatorv1.WatchRegionsResponse{
		Token: at.Proto(), CurrentRootToken: view.Known.Proto(), Era: uint64(view.Era), ClusterId: view.ClusterID,
	}
}

func (w *watch) send(resp *coordinatorv1.WatchRegionsResponse) error {
	w.sentAt = time.Now()
	return w.live.send(w.stream, resp)
}

// snapshot sends everything that is watched, as of one view, in batches of
// bounded size.
func (w *watch) snapshot(v served) error {
	part := w.part(v)
	bytes := 0
	var failed error
	flush := func(size int) bool {
		if bytes += size; bytes < watchBatchBytes {
			return true
		}
		failed = w.send(part)
		part, bytes = w.part(v), 0
		return failed == nil
	}
	v.state.Members(func(m *rootv1.Member) bool {
		part.Members = append(part.Members, m)
		return flush(proto.Size(m))
	})
	keyspaces := w.watched(v)
	for i := 0; failed == nil && i < len(keyspaces); i++ {
		part.Keyspaces = append(part.Keyspaces, &coordinatorv1.KeyspaceChange{Keyspace: keyspaces[i]})
		if !flush(proto.Size(keyspaces[i])) {
			break
		}
		v.state.RegionsFrom(state.KeyspaceID(keyspaces[i].GetId()), "", func(r *state.Region) bool {
			part.Changes = append(part.Changes, &coordinatorv1.RegionChange{Region: r.Proto()})
			return flush(regionBytes(r))
		})
	}
	if failed != nil {
		return failed
	}
	part.SnapshotEnd = true
	return w.send(part)
}

// watched are the keyspaces that this watch is about.
func (w *watch) watched(v served) []*rootv1.Keyspace {
	if w.name != "" {
		return []*rootv1.Keyspace{v.state.Keyspace(w.keyspace)}
	}
	var all []*rootv1.Keyspace
	v.state.Keyspaces("", func(k *rootv1.Keyspace) bool {
		all = append(all, k)
		return true
	})
	return all
}

// part is a batch of a snapshot.
func (w *watch) part(v served) *coordinatorv1.WatchRegionsResponse {
	part := w.empty(v.view.Token)
	part.Snapshot, part.Era = true, uint64(v.view.Era)
	return part
}
