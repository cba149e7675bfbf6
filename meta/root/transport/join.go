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
		if from != nil && a.digest(*from) != a.digest(w) && a.cfg.Join {
			return false, &RefusedError{Peer: w.node, Why: fmt.Sprintf("root peers %d and %d belong to different clusters: root peer %d cannot join both, check the -peer list",
				from.node, w.node, a.me.NodeID)}
		}
		if why := a.refused(w); why != "" {
			return false, &RefusedError{Peer: w.node, Why: fmt.Sprintf("the cluster of root peer %d %s", w.node, why)}
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
func (a *agreement) counted(w welcome) bool { return w.counted(a.me.NodeID, a.me.Incarnation) }

// digest is that of a member's cluster, which only those that it lists are told.
func (a *agreement) digest(w welcome) uint64 {
	if a.counted(w) {
		return digest(w.cluster)
	}
	return w.cluster
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
			return fmt.Sprintf("knows root peer %d by another workdir than this one, %016x: the node id is in use. To become a root peer takes %s", node, a.me.Incarnation, next)
		default:
			return fmt.Sprintf("knows root peer %d by another workdir than this one, %016x: it was wiped or is the wrong one. "+
				"Restore the old workdir, or replace the peer: that takes %s", node, a.me.Incarnation, next)
		}
	}
	if w.replaced {
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
	found := false
	a.mu.Lock()
	for _, node := range slices.Sorted(maps.Keys(a.asked)) {
		if err := a.trouble[node]; err != nil {
			silent = append(silent, fmt.Sprintf("%d: %s", node, err))
		} else if w, ok := a.heard[node]; ok {
			answers = append(answers, fmt.Sprint(node))
			found = found || w.cluster != 0
		}
	}
	a.mu.Unlock()
	what := "bootstrap: still waiting for root peers"
	switch {
	case a.cfg.Join && found:
		what = fmt.Sprintf("root peer %d is not part of the cluster yet: run `nokv root replace --lost ID --with %d`", a.mine.NodeID, a.mine.NodeID)
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
