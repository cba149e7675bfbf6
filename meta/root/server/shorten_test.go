package server_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/meta/root/server"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// answering is a replica whose results are given.
type answering struct {
	*fakeReplica
	results []*rootv1.CommandResult
}

func (a *answering) Propose(context.Context, []*rootv1.Command) ([]*rootv1.CommandResult, error) {
	return a.results, nil
}

// maxAnswer is what a gRPC client takes unless it is told otherwise.
const maxAnswer = 4 << 20

// However long the records are that commands find, the answer can be received: it
// says what became of each, and the names of what was left out. Who asks for little
// beside others gets all of it.
func TestAnswersAreBounded(t *testing.T) {
	long := func(id uint64) *rootv1.Region {
		return &rootv1.Region{Id: id, KeyspaceId: 1, StartKey: bytes.Repeat([]byte{'k'}, 4096), Frontier: bytes.Repeat([]byte{'f'}, 4096), Epoch: &rootv1.RegionEpoch{Version: 3, ConfVersion: 1}}
	}
	completion := func(i int) *rootv1.EventResult {
		return &rootv1.EventResult{Region: long(uint64(i + 1)), RightRegion: long(uint64(i + 100_000)), Transition: &rootv1.Transition{Id: fmt.Sprint("t", i), RegionId: uint64(i + 1), SplitKey: bytes.Repeat([]byte{'s'}, 12<<10)}}
	}
	window := &rootv1.EventResult{Window: &rootv1.Window{From: 7, To: 9}}
	for name, c := range map[string]struct {
		commands, events int
		of               func(i int) *rootv1.CommandResult
	}{
		"1,024 completions": {1024, 1, func(i int) *rootv1.CommandResult {
			return &rootv1.CommandResult{Outcome: rootv1.Outcome_OUTCOME_ALREADY_APPLIED, Events: []*rootv1.EventResult{completion(i)}}
		}},
		"one command of 4,096": {1, 4096, func(int) *rootv1.CommandResult {
			r := &rootv1.CommandResult{Outcome: rootv1.Outcome_OUTCOME_APPLIED}
			for i := range 4096 {
				r.Events = append(r.Events, completion(i))
			}
			return r
		}},
		"1,024 rejections": {1024, 0, func(i int) *rootv1.CommandResult {
			return &rootv1.CommandResult{Outcome: rootv1.Outcome_OUTCOME_REJECTED, Error: &rootv1.ErrorDetail{Reason: rootv1.Reason_REASON_EPOCH_STALE, Message: "stale", Region: long(uint64(i))}}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &answering{fakeReplica: newFakeReplica(t)}
				for i := range c.commands {
					a.results = append(a.results, c.of(i))
				}
				a.results = append(a.results, &rootv1.CommandResult{Outcome: rootv1.Outcome_OUTCOME_APPLIED, Events: []*rootv1.EventResult{window}})
				s := serve(t, a.fakeReplica, func(cfg *server.Config) { cfg.Replica = a })
				ctx, cancel := within(time.Minute)
				defer cancel()
				commands := make([]*rootv1.Command, min(len(a.results), 1024))
				a.results = a.results[len(a.results)-len(commands):]
				for i := range commands {
					commands[i] = joined("m", 1)
				}
				resp, err := s.root().Propose(ctx, &rootv1.ProposeRequest{ClusterId: cluster, Commands: commands})
				if err != nil {
					t.Fatal(err)
				}
				if size := proto.Size(resp); size > maxAnswer-(256<<10) {
					t.Errorf("the answer has %d bytes", size)
				}
				full := 0
				for i, r := range resp.GetResults()[:len(commands)-1] {
					if len(r.GetEvents()) != c.events || r.GetOutcome() == 0 {
						t.Fatalf("result %d: %v, %d events", i, r.GetOutcome(), len(r.GetEvents()))
					}
					if !r.GetShortened() {
						full++
					} else if e := r.GetEvents(); c.commands > 1 && c.events > 0 && (e[0].GetTransition().GetId() == "" || e[0].GetRegion().GetId() == 0 || e[0].GetRegion().GetEpoch().GetVersion() != 3) {
						t.Fatalf("result %d names nothing: %v", i, e[0])
					}
				}
				if c.commands > 1 && (full < 50 || full > 500) {
					t.Errorf("%d results with their records", full)
				}
				if last := resp.GetResults()[len(commands)-1]; last.GetShortened() || last.GetEvents()[0].GetWindow().GetTo() != 9 {
					t.Errorf("who asked for little got %v", last)
				}
			})
		})
	}
}
