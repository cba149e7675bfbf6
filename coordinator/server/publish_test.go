package server_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

func command(events ...*rootv1.Event) *rootv1.Command { return &rootv1.Command{Events: events} }

// A rejection is a result; what was applied can be read at its token.
func TestPublishRootEvent(t *testing.T) {
	w := routed(t)
	resp, err := w.client.PublishRootEvent(within(t), &coordinatorv1.PublishRootEventRequest{Event: publish(1, 1, "", "g", 2, "m1")})
	if err != nil || resp.GetResult().GetOutcome() != rootv1.Outcome_OUTCOME_APPLIED {
		t.Fatalf("%v, %v", resp, err)
	}
	req := byKey("a")
	req.Read = &coordinatorv1.ReadOptions{RequiredRootToken: resp.GetResult().GetToken()}
	got, err := w.client.GetRegionByKey(within(t), req)
	if err != nil || got.GetRegion().GetEpoch().GetVersion() != 2 {
		t.Errorf("read of its own write: %v, %v", got, err)
	}
	_, err = w.client.PublishRootEvent(within(t), &coordinatorv1.PublishRootEventRequest{Event: publish(1, 1, "", "h", 1, "m2")})
	refused(t, err, rootv1.Reason_REASON_EPOCH_STALE)
}

func TestAssessmentOfTransitions(t *testing.T) {
	w := routed(t)
	split := &rootv1.Event{Kind: &rootv1.Event_SplitPlanned{SplitPlanned: &rootv1.SplitPlanned{
		RegionId: 1, ExpectedEpoch: w.root.state.Region(1).Epoch.Proto(), SplitKey: []byte("c"), RightRegionId: 50,
	}}}
	before := w.root.changes()
	assessed, err := w.client.AssessRootEvent(within(t), &coordinatorv1.AssessRootEventRequest{Event: split})
	if err != nil || assessed.GetAssessment() != rootv1.TransitionStatus_TRANSITION_STATUS_OPEN ||
		assessed.GetResult().GetOutcome() != rootv1.Outcome_OUTCOME_APPLIED {
		t.Errorf("assessed %v, %v", assessed, err)
	}
	checkDisclosure(t, w, assessed.GetDisclosure(), coordinatorv1.Freshness_FRESHNESS_BEST_EFFORT)
	if w.root.changes() != before {
		t.Error("an assessment changed the root")
	}
	published, err := w.client.PublishRootEvent(within(t), &coordinatorv1.PublishRootEventRequest{Event: split})
	if err != nil || published.GetAssessment() != rootv1.TransitionStatus_TRANSITION_STATUS_PENDING {
		t.Errorf("published %v, %v", published, err)
	}
	w.catchUp(t)
	for _, region := range []uint64{0, 1} {
		list, err := w.client.ListTransitions(within(t), &coordinatorv1.ListTransitionsRequest{RegionId: region})
		if err != nil || len(list.GetTransitions()) != 1 || list.GetTransitions()[0].GetStatus() != rootv1.TransitionStatus_TRANSITION_STATUS_PENDING {
			t.Errorf("transitions of region %d: %v, %v", region, list, err)
		}
	}
	w.must(t, &rootv1.Event{Kind: &rootv1.Event_TransitionCancelled{TransitionCancelled: &rootv1.TransitionCancelled{
		TransitionId: published.GetResult().GetEvents()[0].GetTransition().GetId(),
	}}})
	list, err := w.client.ListTransitions(within(t), &coordinatorv1.ListTransitionsRequest{})
	if err != nil || len(list.GetTransitions()) != 0 {
		t.Errorf("pending: %v, %v", list, err)
	}
	list, err = w.client.ListTransitions(within(t), &coordinatorv1.ListTransitionsRequest{IncludeEnded: true})
	if err != nil || len(list.GetTransitions()) != 1 {
		t.Errorf("with ended ones: %v, %v", list, err)
	}
}

func TestPublishRootEventsJudgesEachAlone(t *testing.T) {
	w := routed(t)
	resp, err := w.client.PublishRootEvents(within(t), &coordinatorv1.PublishRootEventsRequest{RequestId: 9, Commands: []*rootv1.Command{
		command(created("m3")), command(publish(1, 1, "", "g", 1, "m2")), command(publish(1, 1, "", "g", 3, "m1")),
	}})
	if err != nil || resp.GetRequestId() != 9 || len(resp.GetResults()) != 3 {
		t.Fatalf("%v, %v", resp, err)
	}
	for i, want := range []rootv1.Outcome{rootv1.Outcome_OUTCOME_APPLIED, rootv1.Outcome_OUTCOME_REJECTED, rootv1.Outcome_OUTCOME_APPLIED} {
		if got := resp.GetResults()[i].GetOutcome(); got != want {
			t.Errorf("result %d: %v, want %v", i, resp.GetResults()[i], want)
		}
	}
}

func TestPublishStream(t *testing.T) {
	w := start(t)
	stream, err := w.client.PublishStream(within(t))
	if err != nil {
		t.Fatal(err)
	}
	const requests = 400
	go func() {
		for i := range uint64(requests) {
			req := &coordinatorv1.PublishRootEventsRequest{RequestId: i, Commands: []*rootv1.Command{command(created(fmt.Sprint("m", i)))}}
			if i%7 == 3 {
				req.Commands = nil
			}
			if stream.Send(req) != nil {
				return
			}
		}
		_ = stream.CloseSend()
	}()
	got, err := drain(stream.Recv)
	if err != nil || len(got) != requests {
		t.Fatalf("%d answers, %v", len(got), err)
	}
	for i, resp := range got {
		switch {
		case resp.GetRequestId() != uint64(i):
			t.Fatalf("answer %d is for request %d", i, resp.GetRequestId())
		case i%7 == 3 && resp.GetError().GetReason() != rootv1.Reason_REASON_INVALID_REQUEST,
			i%7 != 3 && (resp.GetError() != nil || len(resp.GetResults()) != 1 || resp.GetResults()[0].GetEvents()[0].GetKeyspace().GetName() != fmt.Sprint("m", i)):
			t.Fatalf("answer %d: %v", i, resp)
		}
	}
}

// A root that refuses, or does not answer, is an answer of the stream too.
func TestPublishWithoutRoot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, limits(func(l *server.Limits) { l.StreamWait = 50 * time.Millisecond }))
		stream, err := w.client.PublishStream(within(t))
		if err != nil {
			t.Fatal(err)
		}
		ask := func() rootv1.Reason {
			if err := stream.Send(&coordinatorv1.PublishRootEventsRequest{Commands: []*rootv1.Command{command(created("m1"))}}); err != nil {
				t.Fatal(err)
			}
			resp, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			return resp.GetError().GetReason()
		}
		w.root.mu.Lock()
		w.root.blocked = make(chan struct{})
		w.root.mu.Unlock()
		if got := ask(); got != rootv1.Reason_REASON_OUTCOME_UNKNOWN {
			t.Errorf("not answered: %v", got)
		}
		soon, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := w.client.RemoveRegion(soon, &coordinatorv1.RemoveRegionRequest{RegionId: 1}); err == nil {
			t.Error("RemoveRegion without an answer")
		}
		close(w.root.blocked)
		w.root.setDown(true)
		if got := ask(); got != rootv1.Reason_REASON_ROOT_UNAVAILABLE {
			t.Errorf("refused: %v", got)
		}
		_, err = w.client.PublishRootEvent(within(t), &coordinatorv1.PublishRootEventRequest{Event: created("m1")})
		refused(t, err, rootv1.Reason_REASON_ROOT_UNAVAILABLE)
	})
}

func TestRemoveRegion(t *testing.T) {
	w := routed(t)
	_, err := w.client.RemoveRegion(within(t), &coordinatorv1.RemoveRegionRequest{RegionId: 1, ExpectedEpoch: &rootv1.RegionEpoch{Version: 9}})
	refused(t, err, rootv1.Reason_REASON_EPOCH_STALE)
	resp, err := w.client.RemoveRegion(within(t), &coordinatorv1.RemoveRegionRequest{RegionId: 1})
	if err != nil || !resp.GetRemoved() || state.TokenFromProto(resp.GetToken()) != w.root.token() {
		t.Errorf("first: %v, %v", resp, err)
	}
	resp, err = w.client.RemoveRegion(within(t), &coordinatorv1.RemoveRegionRequest{RegionId: 1})
	if err != nil || resp.GetRemoved() || resp.GetToken().GetIndex() == 0 {
		t.Errorf("second: %v, %v", resp, err)
	}
	_, err = w.client.RemoveRegion(within(t), &coordinatorv1.RemoveRegionRequest{})
	refused(t, err, rootv1.Reason_REASON_INVALID_REQUEST)
}

func TestPublishRefusals(t *testing.T) {
	w := start(t)
	before := w.root.changes()
	many := &coordinatorv1.PublishRootEventsRequest{}
	for range server.MaxCommands + 1 {
		many.Commands = append(many.Commands, command(created("m1")))
	}
	fat := &coordinatorv1.PublishRootEventsRequest{}
	for i := range 300 {
		e := publish(uint64(i+1), 1, strings.Repeat("k", 4000)+fmt.Sprint(i), "", 1)
		fat.Commands = append(fat.Commands, command(e))
	}
	for name, c := range map[string]struct {
		req   *coordinatorv1.PublishRootEventsRequest
		field string
	}{
		"none":      {&coordinatorv1.PublishRootEventsRequest{}, "commands"},
		"too many":  {many, "commands"},
		"too large": {fat, "commands"},
		"no events": {&coordinatorv1.PublishRootEventsRequest{Commands: []*rootv1.Command{command(created("a")), command()}}, "commands[1].events"},
		"no kind":   {&coordinatorv1.PublishRootEventsRequest{Commands: []*rootv1.Command{command(&rootv1.Event{})}}, "commands[0].events[0]"},
		"not the caller's": {&coordinatorv1.PublishRootEventsRequest{Commands: []*rootv1.Command{command(
			&rootv1.Event{Kind: &rootv1.Event_FenceExtended{FenceExtended: &rootv1.FenceExtended{Size: 1 << 60}}},
		)}}, "commands[0].events[0]"},
		"malformed": {&coordinatorv1.PublishRootEventsRequest{Commands: []*rootv1.Command{command(publish(1, 1, strings.Repeat("k", 5000), "", 1))}}, "commands[0]"},
	} {
		_, err := w.client.PublishRootEvents(within(t), c.req)
		if err == nil {
			t.Errorf("%s was taken", name)
			continue
		}
		if !strings.Contains(err.Error(), c.field) {
			t.Errorf("%s: %v does not name %s", name, err, c.field)
		}
	}
	_, err := w.client.PublishRootEvent(within(t), &coordinatorv1.PublishRootEventRequest{})
	refused(t, err, rootv1.Reason_REASON_INVALID_REQUEST)
	_, err = w.client.AssessRootEvent(within(t), &coordinatorv1.AssessRootEventRequest{})
	refused(t, err, rootv1.Reason_REASON_INVALID_REQUEST)
	_, err = w.client.ListTransitions(within(t), &coordinatorv1.ListTransitionsRequest{Limit: 1025})
	refused(t, err, rootv1.Reason_REASON_INVALID_REQUEST)
	if w.root.changes() != before {
		t.Error("a refused publish changed the root")
	}
}

// longRoot rejects everything, and shows a long region with each rejection.
type longRoot struct{ *memoryRoot }

func (longRoot) Propose(_ context.Context, cmds ...*rootv1.Command) ([]*rootv1.CommandResult, error) {
	out := make([]*rootv1.CommandResult, len(cmds))
	for i := range out {
		out[i] = &rootv1.CommandResult{Outcome: rootv1.Outcome_OUTCOME_REJECTED, Error: &rootv1.ErrorDetail{
			Reason: rootv1.Reason_REASON_EPOCH_STALE, Message: "stale",
			Region: &rootv1.Region{Id: uint64(i + 1), StartKey: make([]byte, 4096), Frontier: make([]byte, 4096)},
		}}
	}
	return out, nil
}

// However much the root shows, an answer can be received by any gRPC client.
func TestAnswersToPublicationsAreBounded(t *testing.T) {
	w := start(t, func(c *server.Config) { c.Root = longRoot{c.Root.(*memoryRoot)} })
	req := &coordinatorv1.PublishRootEventsRequest{}
	for i := range server.MaxCommands {
		req.Commands = append(req.Commands, command(created(fmt.Sprint("m", i))))
	}
	check := func(resp *coordinatorv1.PublishRootEventsResponse, err error) {
		t.Helper()
		if err != nil || len(resp.GetResults()) != server.MaxCommands {
			t.Fatalf("%d results, %v", len(resp.GetResults()), err)
		}
		for i, r := range resp.GetResults() {
			if r.GetError().GetReason() != rootv1.Reason_REASON_EPOCH_STALE || r.GetShortened() == (len(r.GetError().GetRegion().GetStartKey()) > 0) {
				t.Fatalf("result %d: %v", i, r.GetShortened())
			}
		}
	}
	check(w.client.PublishRootEvents(within(t), req))
	stream, err := w.client.PublishStream(within(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(req); err != nil {
		t.Fatal(err)
	}
	check(stream.Recv())
}
