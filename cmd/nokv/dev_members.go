package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nokv/nokv/coordinator/client"
	"github.com/nokv/nokv/internal/procs"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// devMembers are the demo members of `nokv dev`: a process each, so that one can be
// killed.
type devMembers struct {
	n      int
	preset string
}

// devWorker is a demo member in dev.json.
type devWorker struct {
	Member string `json:"member"`
	PID    int    `json:"pid"`
}

// devRegions is how many regions a keyspace of points gets.
const devRegions = 100

func (m devMembers) name(i int) string { return fmt.Sprintf("m%d", i+1) }

func (m devMembers) check() error {
	if m.n < 0 || m.n > 16 {
		return usagef("members %d: want 0 to 16", m.n)
	}
	s, ok := state.Preset(m.preset)
	if !ok {
		return usagef("preset %q: use tenants, games, actors or partitions", m.preset)
	}
	if m.n > 0 && s.GetPlacement() != rootv1.Placement_PLACEMENT_ASSIGNED {
		return usagef("preset %q: members place its regions themselves; use tenants, games, actors or partitions", m.preset)
	}
	return nil
}

// host makes the keyspace and starts the members. What was started is in d.workers
// also after an error.
func (d *dev) host(ctx context.Context, m devMembers) error {
	cl, err := d.client()
	if err != nil {
		return err
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if _, err := cl.CreateKeyspace(ctx, m.preset, m.preset, nil); err != nil && !errors.Is(err, client.ErrAlreadyExists) {
		return fmt.Errorf("keyspace %s: %w", m.preset, err)
	}
	own, err := os.Executable()
	if err != nil {
		return err
	}
	for i := range m.n {
		id := m.name(i)
		args := []string{"worker", "--id", id, "--keyspaces", m.preset, "--coordinator-addr", strings.Join(d.file.Coordinators, ",")}
		if d.file.Certs != "" {
			args = append(args, "--certs", filepath.Join(d.file.Workdir, "certs", "member-"+id))
		}
		p, err := procs.Start(procs.Options{Name: "member " + id, Path: own, Args: args, Log: filepath.Join(d.file.Workdir, id+".log")})
		if err != nil {
			return err
		}
		d.workers = append(d.workers, p)
		d.file.Workers = append(d.file.Workers, devWorker{id, p.PID()})
	}
	return d.populate(ctx, cl, m)
}

// populate waits for the members, and gives them regions if there are none.
func (d *dev) populate(ctx context.Context, cl *client.Client, m devMembers) error {
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for here := 0; here < m.n; {
		select {
		case <-look.C:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d members are there: see %s", here, m.n, filepath.Join(d.file.Workdir, "m*.log"))
		}
		here = 0
		for member, err := range cl.ListMembers(ctx) {
			if err == nil && member.GetConnected() {
				here++
			}
		}
	}
	reply, err := cl.GetKeyspace(ctx, m.preset)
	if err != nil {
		return err
	}
	ks := reply.GetKeyspace()
	if ks.GetSettings().GetLayout().GetPoints() == nil {
		return nil // its regions are there
	}
	cmd := &rootv1.Command{}
	for i := range devRegions {
		cmd.Events = append(cmd.Events, &rootv1.Event{Kind: &rootv1.Event_RegionPublished{RegionPublished: &rootv1.RegionPublished{Region: &rootv1.Region{
			KeyspaceId: ks.GetId(), StartKey: fmt.Appendf(nil, "%s-%03d", m.preset, i), Owners: []*rootv1.Owner{{MemberId: m.name(i % m.n)}},
		}}}})
	}
	if _, err := cl.Publish(ctx, cmd); err != nil && !errors.Is(err, client.ErrRangeOverlap) && !errors.Is(err, client.ErrAlreadyExists) {
		return fmt.Errorf("regions of keyspace %s: %w", m.preset, err)
	}
	return nil
}

// endMembers ends the demo members, which keep nothing.
func (d *dev) endMembers() {
	for _, p := range d.workers {
		p.Kill()
	}
}
