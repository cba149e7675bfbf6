package freshness

import "go.etcd.io/raft/v3/raftpb"

// Promised is what the sender of a message promises by it, which was durable before
// the message left. The message came from that peer's present start. False: nothing
// that is worth remembering at once; what else there is the peer says itself.
func Promised(m *raftpb.Message) (Promise, bool) {
	switch m.GetType() {
	case raftpb.MsgAppResp:
		p := Promise{Term: m.GetTerm()}
		if !m.GetReject() {
			p.Index = m.GetIndex()
		}
		return p, true
	case raftpb.MsgVote:
		return Promise{Term: m.GetTerm(), Vote: m.GetFrom()}, true
	case raftpb.MsgVoteResp:
		p := Promise{Term: m.GetTerm()}
		if !m.GetReject() {
			p.Vote = m.GetTo()
		}
		return p, true
	}
	return Promise{}, false
}
