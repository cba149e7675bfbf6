package roottest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/nokv/nokv/internal/clock"
	"github.com/nokv/nokv/internal/disk"
	"github.com/nokv/nokv/meta/root/freshness"
	"github.com/nokv/nokv/meta/root/replica"
	"github.com/nokv/nokv/meta/root/state"
	"github.com/nokv/nokv/meta/root/storage"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"go.etcd.io/raft/v3/raftpb"
)

// Peer is one root peer: a machine with a disk and a clock, and the process on
// it while it runs.
type Peer struct {
	ID    uint64
	Place Place
	Disk  *disk.Fake
	Clock *Clock

	cluster  *Cluster
	identity storage.Identity
	// losing is its own replacement; nil: it was never lost.
	losing *replacement
	// rooted is what the process knows of the root peers; nil: nothing yet.
	rooted *rootv1.Cluster

	// The process; core is nil while it is down.
	core  *running
	life  int
	store *storage.Storage
	// paused holds back turns; woken says that a turn is due, turning that one is
	// under way: the world goes on while an append takes long.
	paused, woken, turning bool
	// crashed says that the armed crash of the disk has happened.
	crashed bool
	// slow is how long the next append takes.
	slow time.Duration
	// turnBegun is when the newest turn began, turned when the last one ended that did
	// not take too long; 0 for none.
	turnBegun, turned clock.Instant
	input             replica.Input
	waiting           map[replica.Request]func(replica.Request)
	lastTik           int64
	// streams are the open tails and snapshots, in the order they were opened.
	streams []*session
	// Err is why the process stopped by itself last; nil after a kill.
	Err error

	// claim is what the process says of its folder, contacts whom it let in by node
	// id, reaches where it reaches nodes of which there are two. Stale says that it was told
	// that its folder is an older copy.
	claim    freshness.Claim
	contacts map[uint64]contact
	reaches  map[*Peer]*Peer
	Stale    bool
}

// running is a core with its newest view.
type running struct {
	*replica.Core
	view *replica.View
}

// Alive says whether the process runs.
func (p *Peer) Alive() bool { return p.core != nil }

// Runs says whether the process runs and does not stand still as a whole.
func (p *Peer) Runs() bool { return p.core != nil && !p.paused }

// View is what the process published last, as it says it now; nil while it is down.
func (p *Peer) View() *replica.View {
	if p.core == nil {
		return nil
	}
	if p.turned != 0 && p.Clock.Now().Sub(p.turned) >= p.electionTimeout()-p.cluster.cfg.Replica.Tick {
		return p.core.view.StalledSince(p.turned)
	}
	return p.core.view
}

// overdue says that the turn under way takes longer than an election timeout.
func (p *Peer) overdue() bool { return p.Clock.Now().Sub(p.turnBegun) > p.electionTimeout() }

// Storage is the open workdir; nil while the process is down.
func (p *Peer) Storage() *storage.Storage {
	if p.core == nil {
		return nil
	}
	return p.store
}

const workdir = "/root"

func (p *Peer) storageOptions() storage.Options {
	return storage.Options{
		FS:            p.Disk,
		OpenRegisters: func(path string) (storage.Registers, error) { return p.Disk.OpenRegisters(path) },
		ReadRegisters: p.Disk.ReadRegisters,
		SegmentBytes:  p.cluster.cfg.SegmentBytes,
		CheckRecords:  state.CheckPart,
	}
}

// Start starts the process. An error is one that a real process would print
// and end with; crashes during the start are not.
func (p *Peer) Start() error {
	store, err := storage.Open(workdir, p.storageOptions())
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	if _, ok := store.Identity(); !ok {
		if err := store.SaveIdentity(p.identity); err != nil {
			return fmt.Errorf("save identity: %w", err)
		}
	}
	p.rooted = nil
	st, err := replica.LoadState(store)
	if err != nil {
		return fmt.Errorf("load state: %w", err)
	}
	p.life++
	cfg := p.cluster.cfg.Replica
	cfg.NodeID, cfg.Transport, cfg.Join = p.ID, p, p.identity.Joined
	if !cfg.Join {
		cfg.Voters, cfg.Bootstrap = p.cluster.voters(), p.cluster.identity()
	}
	cfg.Seed = p.cluster.World.Rand.Uint64() | 1
	cfg.Overdue = p.overdue
	core, err := replica.NewCore(cfg, &diskLog{Storage: store, peer: p, life: p.life}, st)
	if err != nil {
		return fmt.Errorf("open core: %w", err)
	}
	p.store = store
	if err := p.begin(); err != nil {
		return err
	}
	p.Err, p.paused, p.woken, p.turning = nil, false, false, false
	p.slow, p.turned, p.streams = 0, 0, nil
	p.core = &running{Core: core, view: &replica.View{State: st, LeaderlessSince: p.Clock.Now()}}
	p.input, p.waiting = replica.Input{}, make(map[replica.Request]func(replica.Request))
	p.lastTik = int64(p.Clock.Now()) / int64(p.cluster.cfg.Replica.Tick)
	p.scheduleTick(p.life)
	p.scheduleMaintenance(p.life)
	return nil
}

func (p *Peer) scheduleTick(life int) {
	p.cluster.World.After(p.cluster.cfg.Replica.Tick, func() {
		if p.core == nil || p.life != life {
			return
		}
		// A clock that is fast or slow makes more or fewer ticks of the same true
		// time. No more of them wait than the mailbox of a real peer holds.
		tick := int64(p.Clock.Now()) / int64(p.cluster.cfg.Replica.Tick)
		most := max(1, p.cluster.cfg.Replica.ElectionTicks/2)
		p.input.Ticks = min(p.input.Ticks+int(tick-p.lastTik), most)
		p.lastTik = tick
		p.wake()
		p.scheduleTick(life)
	})
}

func (p *Peer) scheduleMaintenance(life int) {
	p.cluster.World.After(p.cluster.World.Between(5*time.Millisecond, 100*time.Millisecond), func() {
		if p.core == nil || p.life != life {
			return
		}
		if !p.paused {
			if err := p.store.Maintain(); err != nil {
				p.fail(fmt.Errorf("maintain: %w", err))
				return
			}
		}
		p.scheduleMaintenance(life)
	})
}

func (p *Peer) deliver(from *Peer, m *raftpb.Message) {
	if p.core != nil && !p.refuses(from) {
		if len(p.input.Messages) == 0 {
			p.input.MessagesSince = p.Clock.Now()
		}
		p.input.Messages = append(p.input.Messages, m)
		p.wake()
	}
}

// observe hands an event to the process if it is still the one that it is about.
func (p *Peer) observe(life int, e replica.Event) {
	if p.core != nil && p.life == life {
		p.input.Events = append(p.input.Events, e)
		p.wake()
	}
}

// submit hands a request to the process; done is called when it is answered,
// never when the process dies first.
func (p *Peer) submit(r replica.Request, done func(replica.Request)) {
	if p.core == nil {
		return
	}
	p.waiting[r] = done
	p.input.Requests = append(p.input.Requests, r)
	p.wake()
}

// wake runs a turn soon: several inputs share it.
func (p *Peer) wake() {
	if p.woken || p.paused || p.turning {
		return
	}
	p.woken = true
	life := p.life
	p.cluster.World.After(p.cluster.World.Between(time.Microsecond, 200*time.Microsecond), func() {
		if p.core != nil && p.life == life && !p.paused && !p.turning {
			p.turn()
		}
	})
}

func (p *Peer) turn() {
	p.woken, p.turning = false, true
	in, core := p.input, p.core
	p.input = replica.Input{}
	in.Now, in.Wall = p.Clock.Now(), p.Clock.Wall()
	p.turnBegun = in.Now
	out, err := core.Turn(in)
	if p.core != core {
		return // it was killed inside
	}
	late := p.overdue()
	p.turning = false
	if err != nil {
		p.fail(err)
		return
	}
	if out.View != nil {
		core.view = out.View
	}
	if !late {
		p.turned = p.Clock.Now()
	}
	p.cluster.Log.record(p)
	if p.cluster.AfterTurn != nil {
		p.cluster.AfterTurn(p)
	}
	p.cluster.judgeLost(p)
	p.answer(out.Done)
	if out.Checkpoint != nil {
		p.checkpoint(out.Checkpoint)
	}
	if out.View != nil || late {
		p.wakeStreams()
	}
	if out.More || late || p.hasInput() {
		p.wake()
	}
}

func (p *Peer) hasInput() bool {
	in := &p.input
	return in.Ticks > 0 || len(in.Messages)+len(in.Requests)+len(in.Events) > 0 || in.Checkpointed != nil
}

func (p *Peer) answer(requests []replica.Request) {
	for _, r := range requests {
		if done := p.waiting[r]; done != nil {
			delete(p.waiting, r)
			done(r)
		}
	}
}

// checkpoint writes a checkpoint some time later, as a process does in the background.
func (p *Peer) checkpoint(task *replica.CheckpointTask) {
	life := p.life
	p.cluster.World.After(p.cluster.World.Between(0, 30*time.Millisecond), func() {
		if p.core == nil || p.life != life {
			return
		}
		if p.paused {
			p.checkpoint(task)
			return
		}
		done := task.Write(p.store, func() error { return nil })
		p.cluster.Checkpoints++
		p.input.Checkpointed = done
		p.wake()
	})
}

func (p *Peer) checkpointBytes() ([]byte, error) {
	r, _, err := p.store.OpenCheckpoint()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// receiveCheckpoint verifies a checkpoint and tells raft of it.
func (p *Peer) receiveCheckpoint(from *Peer, announced *raftpb.Message, raw []byte) bool {
	if p.core == nil || p.paused || p.refuses(from) || !p.admits(from) || !from.admits(p) {
		return false
	}
	meta, err := p.store.ReceiveCheckpoint(bytes.NewReader(raw))
	if err != nil && !errors.Is(err, storage.ErrOutdated) { // as in the transport
		if errors.Is(err, disk.ErrCrashed) {
			p.fail(err)
		}
		return false
	}
	p.cluster.Transfers++
	p.deliver(from, replica.Received(announced, meta))
	return true
}

// fail ends the process by its own decision, or because the disk crashed under it.
func (p *Peer) fail(err error) {
	p.down()
	p.Err = err
	if !errors.Is(err, disk.ErrCrashed) {
		p.cluster.Failures = append(p.cluster.Failures, fmt.Errorf("root %d at %v: %w", p.ID, p.cluster.World.Now(), err))
	}
}
