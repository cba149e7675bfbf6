package replica_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"github.com/nokv/nokv/meta/root/replica"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// odd are messages that no peer sends, from a peer that does not lead to one
// that leads or follows, at a cluster whose log ends at last in term.
func odd(term, last uint64) map[string]*raftpb.Message {
	u := proto.Uint64
	round := func(n uint64) []byte { return binary.LittleEndian.AppendUint64(nil, n) }
	entry := func(index, term uint64) *raftpb.Entry { return &raftpb.Entry{Index: u(index), Term: u(term)} }
	all := map[string]*raftpb.Message{
		"a round of one byte":        {Type: raftpb.MsgHeartbeatResp.Enum(), Term: u(term), Context: []byte{1}},
		"a round of nine bytes":      {Type: raftpb.MsgHeartbeatResp.Enum(), Term: u(term), Context: make([]byte, 9)},
		"a round that was not asked": {Type: raftpb.MsgHeartbeatResp.Enum(), Term: u(term), Context: round(math.MaxUint64)},
		"the last term":              {Type: raftpb.MsgTimeoutNow.Enum(), Term: u(math.MaxUint64)},
		"a term far ahead":           {Type: raftpb.MsgHeartbeat.Enum(), Term: u(term + 1<<40)},
		"a vote without a term":      {Type: raftpb.MsgVote.Enum(), Index: u(last), LogTerm: u(term)},
		"a read without a name":      {Type: raftpb.MsgReadIndex.Enum()},
		"a read of a term":           {Type: raftpb.MsgReadIndex.Enum(), Term: u(term), Entries: []*raftpb.Entry{{Data: []byte("x")}}},
		"a long name of a read":      {Type: raftpb.MsgReadIndex.Enum(), Entries: []*raftpb.Entry{{Data: make([]byte, 1<<20)}}},
		"an answer to no read":       {Type: raftpb.MsgReadIndexResp.Enum(), Term: u(term), Index: u(last)},
		"a commit beyond the log":    {Type: raftpb.MsgHeartbeat.Enum(), Term: u(term), Commit: u(last + 1)},
		"a later commit":             {Type: raftpb.MsgHeartbeat.Enum(), Term: u(term + 1), Commit: u(last + 100)},
		"an append without a term":   {Type: raftpb.MsgApp.Enum(), Index: u(last), LogTerm: u(term), Entries: []*raftpb.Entry{entry(last+1, term)}},
		"an entry far ahead":         {Type: raftpb.MsgApp.Enum(), Term: u(term + 1), Index: u(last), LogTerm: u(term), Entries: []*raftpb.Entry{entry(last+7, term)}},
		"an entry that is committed": {Type: raftpb.MsgApp.Enum(), Term: u(term + 1), Index: u(last), LogTerm: u(term), Entries: []*raftpb.Entry{entry(1, term+1)}},
		"an entry of a later term":   {Type: raftpb.MsgApp.Enum(), Term: u(term + 1), Index: u(last), LogTerm: u(term), Entries: []*raftpb.Entry{entry(last+1, term+2)}},
		"an entry of an unknown kind": {Type: raftpb.MsgApp.Enum(), Term: u(term + 1), Index: u(last), LogTerm: u(term), Commit: u(last + 1), Entries: []*raftpb.Entry{
			{Index: u(last + 1), Term: u(term + 1), Type: raftpb.EntryType(9).Enum()},
		}},
		"a change of members that is none": {Type: raftpb.MsgApp.Enum(), Term: u(term + 1), Index: u(last), LogTerm: u(term), Commit: u(last + 1), Entries: []*raftpb.Entry{
			{Index: u(last + 1), Term: u(term + 1), Type: raftpb.EntryConfChangeV2.Enum(), Data: []byte{0xff}},
		}},
		"an answer beyond the log": {Type: raftpb.MsgAppResp.Enum(), Term: u(term), Index: u(last + 1)},
		"a hint beyond the log":    {Type: raftpb.MsgAppResp.Enum(), Term: u(term), Index: u(last), Reject: proto.Bool(true), RejectHint: u(math.MaxUint64)},
		"the last index":           {Type: raftpb.MsgApp.Enum(), Term: u(term), Index: u(math.MaxUint64), LogTerm: u(term), Entries: []*raftpb.Entry{entry(0, term)}},
	}
	return all
}

// What no peer sends stops nobody: it is counted and dropped, and everything goes on.
func TestOddMessagesAreRefused(t *testing.T) {
	for what := range odd(1, 1) {
		t.Run(what, func(t *testing.T) {
			c := newCluster(t, 3, nil)
			l := c.elect()
			c.tick(3)
			sender := c.order[0]
			if sender == l.id {
				sender = c.order[1]
			}
			refused := uint64(0)
			for _, to := range c.order {
				p := c.peers[to]
				if to == sender {
					continue
				}
				m := odd(p.view.Term, p.view.LastIndex)[what]
				m.From, m.To = proto.Uint64(sender), proto.Uint64(to)
				p.inbox = append(p.inbox, m)
				c.settle()
				c.tick(1)
				if p.err != nil {
					t.Fatalf("peer %d stopped: %v", to, p.err)
				}
				refused += p.view.RefusedMessages
			}
			if refused == 0 {
				t.Error("nobody refused it")
			}
			write := propose(t, "c1")
			c.elect().turn(0, write)
			c.tick(20)
			if l := c.leader(); l == nil || write.Err != nil {
				t.Fatalf("nothing is written behind it: %v", write.Err)
			}
			c.same()
		})
	}
}

// A heartbeat behind an append that cut the log, in one Turn, is of before the cut.
func TestHeartbeatBehindACutLog(t *testing.T) {
	c := newCluster(t, 3, nil)
	l := c.elect()
	c.isolate(l.id)
	l.turn(0, propose(t, "a"), propose(t, "b"))
	u := proto.Uint64
	term := l.view.Term + 1
	commit := l.view.Commit
	other := c.order[0]
	if other == l.id {
		other = c.order[1]
	}
	for i := range l.view.LastIndex - commit - 1 {
		l.turn(0, propose(t, fmt.Sprint(i)))
	}
	l.turn(0, propose(t, "d"))
	last := l.view.LastIndex
	l.inbox = append(l.inbox,
		&raftpb.Message{Type: raftpb.MsgApp.Enum(), From: u(other), To: u(l.id), Term: u(term), Index: u(commit), LogTerm: u(term - 1), Entries: []*raftpb.Entry{{Index: u(commit + 1), Term: u(term)}}},
		&raftpb.Message{Type: raftpb.MsgHeartbeat.Enum(), From: u(other), To: u(l.id), Term: u(term), Commit: u(last)})
	l.turn(0)
	if l.err != nil || l.view.LastIndex != commit+1 || l.view.RefusedMessages != 0 {
		t.Errorf("%v; the log ends at %d, want %d; %d refused", l.err, l.view.LastIndex, commit+1, l.view.RefusedMessages)
	}
}

// Hashes of positions far ahead do not push out those that can be compared.
func TestHashesFarAheadAreNotKept(t *testing.T) {
	c := newCluster(t, 3, func(cfg *replica.Config) { cfg.HashEvery = 2 })
	l := c.elect()
	other := c.order[0]
	if other == l.id {
		other = c.order[1]
	}
	for i := range uint64(100) {
		l.events = append(l.events, replica.Event{Kind: replica.PeerStateHash, Peer: other, Index: 1<<40 + 2*i, Hash: i})
	}
	c.settle()
	// Behind them a difference is still noticed.
	at := l.view.Applied + 4 - l.view.Applied%2
	for _, id := range c.order {
		if id != l.id {
			l.events = append(l.events, replica.Event{Kind: replica.PeerStateHash, Peer: id, Index: at, Hash: 0xbad})
		}
	}
	c.dropHashes = true
	for i := 0; l.err == nil && l.view.Applied < at; i++ {
		l.turn(0, propose(t, fmt.Sprintf("c%d", i)))
		c.settle()
	}
	if l.err == nil {
		t.Error("the peer goes on though the others agree on another state")
	}
}

// FuzzMessages gives peers of a small cluster anything as a message of another one: no
// panic, and no peer stops. Entries have no content: what is in them is the leader's.
func FuzzMessages(f *testing.F) {
	encode := func(m *raftpb.Message) []byte {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		return b
	}
	for _, m := range odd(1, 3) {
		f.Add(encode(m), uint8(0), uint8(0))
		f.Add(encode(m), uint8(1), uint8(3))
	}
	f.Fuzz(func(t *testing.T, data []byte, pair, relative uint8) {
		c := newCluster(t, 3, func(cfg *replica.Config) { cfg.HashEvery = 1 << 40 })
		l := c.elect()
		l.turn(0, propose(t, "c1"))
		c.settle()
		// Messages one after the other, each behind its length.
		for len(data) > 0 {
			n := min(len(data), 200)
			m := &raftpb.Message{}
			if err := proto.Unmarshal(data[:n], m); err != nil {
				return
			}
			data = data[n:]
			from := c.order[pair%3]
			to := c.order[(uint64(pair)/3+1+uint64(pair%3))%3]
			m.From, m.To = proto.Uint64(from), proto.Uint64(to)
			p := c.peers[to]
			// Terms and indexes near those that there are reach further than any.
			if relative&1 != 0 {
				m.Term = proto.Uint64(p.view.Term + m.GetTerm()%4 - 1)
			}
			if relative&2 != 0 {
				m.Index = proto.Uint64(p.view.LastIndex + m.GetIndex()%4 - 1)
				m.LogTerm = proto.Uint64(p.view.Term)
				for i, e := range m.GetEntries() {
					e.Index = proto.Uint64(m.GetIndex() + uint64(i) + 1)
				}
			}
			for _, e := range m.GetEntries() {
				if m.GetType() == raftpb.MsgApp && e.GetType() == raftpb.EntryNormal {
					e.Data = nil
				}
			}
			p.inbox = append(p.inbox, m)
			if relative&4 == 0 {
				c.settle()
			}
		}
		c.tick(25)
		for _, id := range c.order {
			if err := c.peers[id].err; err != nil {
				t.Fatalf("peer %d stopped: %v", id, err)
			}
		}
	})
}
