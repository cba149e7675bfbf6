package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/store/host"
	"github.com/nokv/nokv/store/local"
)

const (
	// askPause is the time between two tries of what has to succeed first.
	askPause = time.Second
	// reportAgain is when a region is reported anew although nothing has changed: half of
	// the time that a report of a leader counts for.
	reportAgain = 2 * time.Minute
	// operationWithin bounds the doing of one hint.
	operationWithin = 2 * time.Minute
	// whyBytes is how much of a hint's reason stands beside the change in the log.
	whyBytes = 256
)

// control finds the keyspace, and then follows it and sends heartbeats until ctx ends.
func (s *Store) control(ctx context.Context) error {
	if err := s.until(ctx, heartbeats, s.bind); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := s.watch(ctx); err != nil && ctx.Err() == nil {
			cancel(err)
		}
	}()
	err := s.beat(ctx)
	cancel(err)
	<-ended
	return context.Cause(ctx)
}

// fatalError is one that does not go away by waiting.
type fatalError struct{ error }

// Unwrap returns what is wrong.
func (e fatalError) Unwrap() error { return e.error }

// ofDisk is an error of the workdir, which waiting does not mend, except for one of a full disk.
func ofDisk(err error) error {
	if errors.Is(err, local.ErrNoRoom) {
		return err
	}
	return fatalError{err}
}

// until tries again until it succeeds, ctx ends or it can never succeed.
func (s *Store) until(ctx context.Context, what source, try func(context.Context) error) error {
	for {
		err := try(ctx)
		if err == nil || ctx.Err() != nil {
			return nil
		}
		if _, fatal := errors.AsType[fatalError](err); fatal {
			return err
		}
		s.heard(what, err)
		select {
		case <-time.After(askPause):
		case <-ctx.Done():
		}
	}
}

// bind learns which cluster and keyspace the store is of, and notes it in its workdir.
func (s *Store) bind(ctx context.Context) error {
	answer, err := s.client.GetKeyspace(ctx, s.cfg.Keyspace)
	switch {
	case errors.Is(err, client.ErrClusterMismatch):
		return otherCluster(err)
	case err != nil:
		return err
	}
	k := answer.GetKeyspace()
	if k.GetSettings().GetPlacement() != rootv1.Placement_PLACEMENT_REPORTED || k.GetSettings().GetLayout().GetRanges() == nil {
		return fatalError{fmt.Errorf("keyspace %q is not one of ranges whose members report their regions: nokv keyspace create NAME --preset kv makes one", k.GetName())}
	}
	cluster := s.client.ClusterID()
	if err := s.disk.Bind(cluster, k.GetId()); err != nil {
		return ofDisk(err)
	}
	s.cluster.Store(cluster)
	return nil
}

// otherCluster says what to do about coordinators that are of another cluster than the workdir.
func otherCluster(err error) error {
	return fatalError{fmt.Errorf("%w: this workdir is of another cluster; check --coordinator-addr; for a new store of that cluster, name an empty --workdir; if that cluster is restored from a backup of this one, start the store with --rebind once", err)}
}

// watch follows the keyspace until ctx ends.
func (s *Store) watch(ctx context.Context) error {
	first := sync.OnceFunc(func() { close(s.followed) })
	return s.until(ctx, regions, func(ctx context.Context) error {
		var changes []host.Change
		for b, err := range s.client.WatchRegions(ctx, client.Position{}, client.In(s.cfg.Keyspace), client.WithMembers()) {
			switch {
			case errors.Is(err, client.ErrClusterMismatch):
				return otherCluster(err)
			case err != nil:
				return err
			}
			if b.First {
				changes = nil
			}
			for _, m := range b.GetMembers() {
				if err := s.learn(m); err != nil {
					return err
				}
			}
			for _, c := range b.GetChanges() {
				if s.concerns(c.GetRegion()) {
					changes = append(changes, host.Change{Region: rooted.RegionFromProto(c.GetRegion()), Removed: c.GetRemoved()})
				}
			}
			if b.Last {
				if err := s.host.Follow(changes, b.GetSnapshot(), b.GetToken().GetIndex()); err != nil {
					return ofDisk(err)
				}
				first()
				s.heard(regions, nil)
				changes = nil
			}
		}
		return nil
	})
}

// learn takes where a store is reached. That another process has registered as this one
// ends it at once, and not with the next heartbeat.
func (s *Store) learn(m *coordinatorv1.MemberChange) error {
	id, address := rooted.MemberID(m.GetMember().GetId()), m.GetMember().GetAddress()
	if m.GetRemoved() {
		address = ""
	}
	s.peers.Register(id, address)
	// Its own registration may be in the watch before it is answered.
	own := s.incarnation.Load()
	if id == s.self && own != 0 && m.GetMember().GetIncarnation() > own && m.GetMember().GetStartNonce() != s.nonce.Load() {
		return s.superseded(fmt.Errorf("it is at %s, incarnation %d", address, m.GetMember().GetIncarnation()))
	}
	return nil
}

// superseded ends the store: another process speaks for it, and what that serves this one
// must not.
func (s *Store) superseded(err error) error {
	s.host.End()
	return fatalError{fmt.Errorf("another process runs as %s: %w", s.self, err)}
}

// concerns says whether a region is or was hosted here.
func (s *Store) concerns(r *rootv1.Region) bool {
	for _, o := range r.GetOwners() {
		if o.GetMemberId() == string(s.self) {
			return true
		}
	}
	return s.host.Hosts(rooted.RegionID(r.GetId()))
}

// register makes the process the one that speaks for the store, if its folder is the one
// that the last one ran on.
func (s *Store) register(ctx context.Context, nonce uint64) error {
	last, err := s.client.GetMember(ctx, s.self, client.Strong())
	if errors.Is(err, client.ErrClusterMismatch) {
		return otherCluster(err)
	}
	if err != nil && !errors.Is(err, client.ErrMemberNotFound) {
		return err
	}
	if err := s.disk.Live(last.GetMember().GetStartNonce(), nonce); err != nil {
		return ofDisk(err)
	}
	m, err := s.client.RegisterMemberAfter(ctx, &rootv1.Member{
		Id: string(s.self), Address: s.cfg.Advertise, Kind: "store", StartNonce: nonce, Keyspaces: []string{s.cfg.Keyspace},
	}, last.GetMember().GetIncarnation())
	switch {
	case errors.Is(err, client.ErrClusterMismatch):
		return otherCluster(err)
	case errors.Is(err, client.ErrMemberRetired), errors.Is(err, client.ErrInvalidRequest), errors.Is(err, client.ErrPermissionDenied):
		return fatalError{err}
	case err == nil:
		s.incarnation.Store(m.GetIncarnation())
		s.host.Serve()
	}
	return err
}

// enlist registers until it succeeds, as a process of its own.
func (s *Store) enlist(ctx context.Context) error {
	nonce := rand.Uint64() | 1
	s.nonce.Store(nonce)
	return s.until(ctx, heartbeats, func(ctx context.Context) error { return s.register(ctx, nonce) })
}

// beat registers and sends heartbeats until ctx ends.
func (s *Store) beat(ctx context.Context) error {
	if err := s.enlist(ctx); err != nil {
		return err
	}
	if s.cfg.Rebind {
		// What it knows of regions is another cluster's, or old: it tells nobody before it has
		// heard what is so.
		select {
		case <-s.followed:
		case <-ctx.Done():
			return nil
		}
	}
	ticker := time.NewTicker(s.cfg.Heartbeat)
	defer ticker.Stop()
	told := map[rooted.RegionID]told{}
	var sequence, served uint64
	for {
		sequence++
		now := s.host.Served()
		err := s.tell(ctx, sequence, float64(now-served)/s.cfg.Heartbeat.Seconds(), told)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, client.ErrMemberRetired):
			return s.superseded(err)
		case errors.Is(err, errOver):
			s.host.Suspend()
			s.cfg.Logger.Warn("registers again", "member", string(s.self), "incarnation", s.incarnation.Load(), "err", err)
			clear(told)
			if err := s.enlist(ctx); err != nil {
				return err
			}
		case err == nil:
			served = now
			fallthrough
		default:
			s.heard(heartbeats, err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// errOver is why a process has to register again: the root does not have it as one that
// may act.
var errOver = errors.New("it is said to have failed, or is not known any more")

// told is what coordinators were told last of a region.
type told struct {
	report host.Report
	at     time.Time
}

// tell sends a heartbeat, and a report of each region that has changed.
func (s *Store) tell(ctx context.Context, sequence uint64, load float64, told map[rooted.RegionID]told) error {
	reports := s.host.Reports()
	leads := uint64(0)
	for _, r := range reports {
		if r.Leads {
			leads++
		}
	}
	if err := s.tellRegions(ctx, reports, told); err != nil {
		return err
	}
	answer, err := s.client.StoreHeartbeat(ctx, &coordinatorv1.StoreHeartbeatRequest{
		MemberId: string(s.self), Incarnation: s.incarnation.Load(), Sequence: sequence,
		RegionCount: uint64(len(reports)), LeaderCount: leads, Load: load,
	})
	switch {
	case errors.Is(err, client.ErrRegisterFirst):
		return errors.Join(errOver, err)
	case err != nil:
		return err
	case answer.GetState() == rootv1.MemberState_MEMBER_STATE_FAILED:
		return errOver
	}
	if s.undone.Load() > 0 {
		return nil // they were judged without what is being done, and will be hinted at again
	}
	for _, op := range answer.GetOperations() {
		select {
		case s.operations <- op:
			s.undone.Add(1)
		default:
		}
	}
	return nil
}

// tellRegions reports regions that have changed, for as long as a heartbeat may take: the
// rest waits for the next one.
func (s *Store) tellRegions(ctx context.Context, reports []host.Report, last map[rooted.RegionID]told) error {
	began := time.Now()
	hosted := make(map[rooted.RegionID]bool, len(reports))
	for _, r := range reports {
		hosted[r.Region.ID] = true
	}
	for id := range last {
		if !hosted[id] {
			delete(last, id)
		}
	}
	for _, r := range reports {
		was, now := last[r.Region.ID], time.Now()
		if was.report.Region == r.Region && was.report.Leads == r.Leads && was.report.Keys == r.Keys && was.report.Bytes == r.Bytes && now.Sub(was.at) < reportAgain {
			continue
		}
		if now.Sub(began) > s.cfg.Heartbeat {
			return nil
		}
		_, err := s.client.RegionHeartbeat(ctx, &coordinatorv1.RegionHeartbeatRequest{
			MemberId: string(s.self), Incarnation: s.incarnation.Load(), Region: r.Region.Proto(), Leader: r.Leads, KeyCount: r.Keys, Bytes: r.Bytes,
		})
		switch refused, _ := errors.AsType[*client.Error](err); {
		case err == nil, errors.Is(err, client.ErrEpochStale), errors.Is(err, client.ErrNotFound):
			// What the root has removed, or changed, the watch tells.
		case refused == nil || !aboutRegion(refused.Reason):
			return err
		default:
			s.cfg.Logger.Warn("a report of a region is refused", "region", r.Region.ID, "err", err)
		}
		last[r.Region.ID] = told{r, now}
	}
	return nil
}

// aboutRegion reports whether a refusal of a report is about its region, and not about who
// sends it or who is asked.
func aboutRegion(r rootv1.Reason) bool {
	switch r {
	case rootv1.Reason_REASON_INVALID_REQUEST, rootv1.Reason_REASON_INVALID_RANGE, rootv1.Reason_REASON_RANGE_OVERLAP, rootv1.Reason_REASON_PERMISSION_DENIED,
		rootv1.Reason_REASON_CAPACITY_EXCEEDED, rootv1.Reason_REASON_ALREADY_EXISTS, rootv1.Reason_REASON_MEMBER_NOT_FOUND, rootv1.Reason_REASON_RANGE_CHANGE_PENDING:
		return true
	}
	return false
}

// obey does what coordinators hint at, one after the other, until ctx ends.
func (s *Store) obey(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case op := <-s.operations:
			doing, cancel := context.WithTimeout(client.WithWhy(ctx, strings.ToValidUTF8(op.GetReason()[:min(len(op.GetReason()), whyBytes)], "")), operationWithin)
			err := s.host.Do(doing, op)
			cancel()
			s.undone.Add(-1)
			log := s.cfg.Logger.With("hint", op.GetReason(), "reason", op.GetReasonCode(), "era", op.GetEra())
			if err != nil {
				log.Info("did not obey a hint", "err", err)
				continue
			}
			s.did.Add(1)
			log.Info("obeyed a hint")
		}
	}
}
