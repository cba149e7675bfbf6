package transport

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nokv/nokv/meta/root/storage"
)

// reportEvery is the pause between two lines about what a peer waits for.
const reportEvery = 5 * time.Second

// maxAsked bounds the peers that are asked: those given, and those told of.
const maxAsked = 16

// adopt follows those that are members already, when they count this workdir in.
// An error is for good: no cluster counts a node id in twice.
func (a *agreement) adopt(heard []welcome) (done bool, err error) {
	var from *welcome
	for i, w := range heard {
		if w.cluster == 0 {
			continue
		}
		if from != nil && from.cluster != w.cluster && a.cfg.Join {
			return false, &RefusedError{Peer: w.node, Why: fmt.Sprintf("%s and %s belong to different clusters: root peer %d cannot join both, check the -peer list",
				party(from.node, from.cluster, from.incarnation), party(w.node, w.cluster, w.incarnation), a.me.NodeID)}
		}
		if why := a.refused(w); why != "" {
			return false, &RefusedError{Peer: w.node, Why: fmt.Sprintf("%s %s", party(w.node, w.cluster, w.incarnation), why)}
		}
		if from == nil || !a.counted(*from) {
			from = &heard[i]
		}
	}
	if from == nil || !a.counted(*from) {
		return false, nil
	}
	a.me.ClusterID, a.me.Joined = from.cluster, !from.founders
	known := a.me.Peers
	a.me.Peers = nil
	for _, m := range sortedPeers(from.members) {
		if given := addressOf(known, m.NodeID); given != "" {
			m.Address = given
		}
		a.me.Peers = append(a.me.Peers, m)
	}
	_, err = a.complete()
	return err == nil, err
}

// counted says whether a member lists this workdir.
func (a *agreement) counted(w welcome) bool {
	return slices.ContainsFunc(w.members, func(m storage.Peer) bool {
		return m.NodeID == a.me.NodeID && m.Incarnation == a.me.Incarnation
	})
}

// refused says why this workdir will never be a peer of a member's cluster under
// this node id; empty: it may.
func (a *agreement) refused(w welcome) string {
	node := a.me.NodeID
	next := "a node id that was never used and an empty workdir, started with -join, then `nokv root replace --lost ID --with ID`"
	for _, m := range w.members {
		switch {
		case m.NodeID != node || m.Incarnation == a.me.Incarnation:
		case a.cfg.Join:
			return fmt.Sprintf("knows root peer %d by workdir %016x; this workdir is %016x: the node id is in use. To become a root peer takes %s", node, m.Incarnation, a.me.Incarnation, next)
		default:
			return fmt.Sprintf("knows root peer %d by workdir %016x; this workdir is %016x: it was wiped or is the wrong one. "+
				"Restore the old workdir, or replace the peer: that takes %s", node, m.Incarnation, a.me.Incarnation, next)
		}
	}
	if slices.Contains(w.replaced, node) {
		return fmt.Sprintf("had a root peer %d that was replaced or given up: its node id is not used again. To become a root peer takes %s", node, next)
	}
	if a.cfg.Join {
		return ""
	}
	if !a.counted(w) {
		return fmt.Sprintf("has the peers %s, and root peer %d is none of them. To become a root peer takes %s", names(w.members), node, next)
	}
	if w.founders && names(w.members) != names(a.me.Peers) {
		return fmt.Sprintf("has the peers %s, root peer %d was given %s", names(w.members), node, names(a.me.Peers))
	}
	return ""
}

// learned are the peers that members tell of: the leader may be among those that
// were not given.
func (a *agreement) learned() []storage.Peer {
	var out []storage.Peer
	for _, w := range a.words() {
		out = append(out, w.members...)
	}
	return out
}

// unasked are those of peers that are to be asked from now on.
func (a *agreement) unasked(peers []storage.Peer) []storage.Peer {
	var out []storage.Peer
	for _, p := range peers {
		// A new peer may be where the lost one was.
		here := p.NodeID == a.mine.NodeID || p.Address == "" || p.Address == a.cfg.Address
		if here || a.asked[p.NodeID] || len(a.asked) >= maxAsked {
			continue
		}
		a.asked[p.NodeID] = true
		out = append(out, p)
	}
	return out
}

// note keeps what came of the last try to reach a peer.
func (a *agreement) note(node uint64, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.trouble, node)
	if err != nil {
		a.trouble[node] = err
	}
}

// report logs what this peer waits for.
func (a *agreement) report() {
	var answers, silent []string
	cluster := uint64(0)
	a.mu.Lock()
	for _, node := range slices.Sorted(maps.Keys(a.asked)) {
		if err := a.trouble[node]; err != nil {
			silent = append(silent, fmt.Sprintf("%d: %s", node, err))
		} else if w, ok := a.heard[node]; ok {
			answers = append(answers, fmt.Sprint(node))
			cluster = max(cluster, w.cluster)
		}
	}
	a.mu.Unlock()
	what := "bootstrap: still waiting for root peers"
	switch {
	case a.cfg.Join && cluster != 0:
		what = fmt.Sprintf("root peer %d is not part of cluster %016x yet: run `nokv root replace --lost ID --with %d`", a.mine.NodeID, cluster, a.mine.NodeID)
	case a.cfg.Join:
		what = fmt.Sprintf("root peer %d reaches no peer of a cluster that it could become part of", a.mine.NodeID)
	}
	a.log.Info(what, "answer", strings.Join(answers, ", "), "trouble", strings.Join(silent, "; "))
}

// addressOf is where peers say that a node is; empty when they do not.
func addressOf(peers []storage.Peer, node uint64) string {
	for _, p := range peers {
		if p.NodeID == node {
			return p.Address
		}
	}
	return ""
}
