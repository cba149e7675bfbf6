package server_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nokv/nokv/coordinator/server"
	"github.com/nokv/nokv/meta/root/state"
	coordinatorv1 "github.com/nokv/nokv/proto/nokv/coordinator/v1"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
	"google.golang.org/protobuf/proto"
)

// large is a cluster whose every list is longer than an answer may be.
func large(t *testing.T) *world {
	w := start(t)
	const many = 900
	long := func(prefix string, i int) string {
		return fmt.Sprintf("%s%03d%s", prefix, i, strings.Repeat("x", state.MaxKeyBytes-20))
	}
	for i := range 100 {
		m := join(fmt.Sprintf("m%03d", i))
		m.GetMemberJoined().Member.Labels = map[string]string{}
		for n := range state.MaxLabels {
			label := fmt.Sprintf("%03d", n)
			m.GetMemberJoined().Member.Labels[label+strings.Repeat("k", state.MaxLabelBytes-len(label))] = strings.Repeat("v", state.MaxLabelBytes)
		}
		w.root.must(t, m)
	}
	settings := state.DefaultSettings()
	for n := range 40 {
		settings.Policy.LabelRules = append(settings.Policy.LabelRules, &rootv1.LabelRule{KeyPrefix: []byte(long("p", n)), Labels: map[string]string{"a": "b"}})
	}
	for i := range 30 {
		w.root.must(t, create(fmt.Sprintf("k%03d", i), settings))
	}
	for i := range many {
		start := long("r", i)
		w.root.must(t, publish(uint64(1000+i), 1, start, start+"~", 1))
		w.root.must(t, &rootv1.Event{Kind: &rootv1.Event_SplitPlanned{SplitPlanned: &rootv1.SplitPlanned{
			RegionId: uint64(1000 + i), ExpectedEpoch: &rootv1.RegionEpoch{Version: 1, ConfVersion: 1}, SplitKey: []byte(start + "!"), RightRegionId: uint64(5000 + i),
		}}})
	}
	w.catchUp(t)
	return w
}

// A page is no longer than an answer may be, in bytes, and the pages together have
// each record once.
func TestPagesAreBoundedInBytes(t *testing.T) {
	w := large(t)
	ctx := within(t)
	for name, list := range map[string]func(after string) (page proto.Message, ids []string, next string, err error){
		"members": func(after string) (proto.Message, []string, string, error) {
			page, err := w.client.ListMembers(ctx, &coordinatorv1.ListMembersRequest{After: after, Limit: server.MaxListLimit})
			var ids []string
			for _, m := range page.GetMembers() {
				ids = append(ids, m.GetMember().GetId())
			}
			return page, ids, lastIf(page.GetMore(), ids), err
		},
		"keyspaces": func(after string) (proto.Message, []string, string, error) {
			page, err := w.client.ListKeyspaces(ctx, &coordinatorv1.ListKeyspacesRequest{After: after, Limit: server.MaxListLimit})
			var ids []string
			for _, k := range page.GetKeyspaces() {
				ids = append(ids, k.GetName())
			}
			return page, ids, lastIf(page.GetMore(), ids), err
		},
		"transitions": func(after string) (proto.Message, []string, string, error) {
			page, err := w.client.ListTransitions(ctx, &coordinatorv1.ListTransitionsRequest{Page: after, Limit: server.MaxListLimit})
			var ids []string
			for _, p := range page.GetTransitions() {
				ids = append(ids, p.GetId())
			}
			return page, ids, page.GetNextPage(), err
		},
		"regions": func(after string) (proto.Message, []string, string, error) {
			page, err := w.client.ScanRegions(ctx, &coordinatorv1.ScanRegionsRequest{StartKey: []byte(after), Limit: server.MaxListLimit})
			var ids []string
			for _, r := range page.GetRegions() {
				ids = append(ids, fmt.Sprint(r.GetId()))
			}
			return page, ids, string(page.GetNextStartKey()), err
		},
	} {
		t.Run(name, func(t *testing.T) {
			var all []string
			pages := 0
			for after := ""; pages == 0 || after != ""; pages++ {
				page, ids, next, err := list(after)
				if err != nil {
					t.Fatal(err)
				}
				// The last record may be the one that goes over it.
				if size := proto.Size(page); size > server.MaxReplyBytes+(256<<10) || len(ids) == 0 {
					t.Errorf("a page of %d records in %d bytes", len(ids), size)
				}
				all, after = append(all, ids...), next
			}
			want := map[string]int{"members": 100, "keyspaces": 31, "transitions": 900, "regions": 900}[name]
			slices.Sort(all)
			if n := len(all); n != want || len(slices.Compact(all)) != want || pages < 2 {
				t.Errorf("%d records in %d pages, want %d, each once, in more than one", n, pages, want)
			}
		})
	}
}

func lastIf(more bool, ids []string) string {
	if !more || len(ids) == 0 {
		return ""
	}
	return ids[len(ids)-1]
}
