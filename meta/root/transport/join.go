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
	a.mu.Lock()
	defer a.mu.Unlock()
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
	a.sayLocked()
}

// report logs what this peer waits for.
func (a *agreement) report() {
	a.mu.Lock()
	what := a.waitsLocked()
	a.mu.Unlock()
	a.log.Info("bootstrap: " + what)
}

// sayLocked tells Waiting what changed.
func (a *agreement) sayLocked() {
	if a.cfg.Waiting == nil {
		return
	}
	if what := a.waitsLocked(); what != a.waiting {
		a.waiting = what
		a.cfg.Waiting(what)
	}
}

// maxTrouble bounds what is said of the trouble with one peer, in bytes: a part of it are
// the peer's words.
const maxTrouble = 400

// waitsLocked says in a sentence what this peer waits for.
func (a *agreement) waitsLocked() string {
	var missing, trouble []string
	found := false
	for _, node := range slices.Sorted(maps.Keys(a.asked)) {
		w, heard := a.heard[node]
		if found = found || w.cluster != 0; !heard {
			missing = append(missing, fmt.Sprint(node))
		}
		if err := a.trouble[node]; err != nil {
			text := err.Error()
			trouble = append(trouble, fmt.Sprintf("%d: %s", node, strings.ToValidUTF8(text[:min(len(text), maxTrouble)], "")))
		}
	}
	var what string
	switch me := a.mine.NodeID; {
	case a.cfg.Join && found:
		what = fmt.Sprintf("root peer %d is not part of the cluster yet: run `nokv root replace --lost ID --with %d`", me, me)
	case a.cfg.Join:
		what = fmt.Sprintf("root peer %d reaches no peer of a cluster that it could become part of", me)
	case len(missing) == 0:
		what = "founding the cluster"
	case len(missing) == 1:
		what = fmt.Sprintf("waiting for root peer %s to found the cluster", missing[0])
	default:
		last := len(missing) - 1
		what = fmt.Sprintf("waiting for root peers %s and %s to found the cluster", strings.Join(missing[:last], ", "), missing[last])
	}
	if len(trouble) > 0 {
		what += ": " + strings.Join(trouble, "; ")
	}
	return what
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
