package router

import (
	"math/bits"
	"math/rand/v2"

	"github.com/nokv/nokv/coordinator/client"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

// lives says whether an owner of which m is known may be asked: it is the incarnation
// that the region was granted to, where that is told, and has an address.
func lives(m *client.Member, incarnation uint64) bool {
	return m.State != rootv1.MemberState_MEMBER_STATE_FAILED && m.State != rootv1.MemberState_MEMBER_STATE_REMOVED &&
		m.Address != "" && (incarnation == 0 || m.Incarnation == incarnation)
}

// Lives says whether an owner of a route may be asked.
func Lives(route *client.Route) bool {
	for i, m := range route.Members() {
		if lives(&m, route.Region.Owners[i].Incarnation) {
			return true
		}
	}
	return false
}

// mostOwners is how many owners of a region are looked at.
const mostOwners = 64

// pick chooses an owner of what is held; nil: none lives.
func (v *view) pick(key []byte, h *client.Held) *client.Peer {
	switch len(h.Peers()) {
	case 0:
		return nil
	case 1:
		if p := h.Peers()[0]; lives(p.Now(), h.Incarnation()) {
			return p
		}
		return nil
	}
	peers := h.Peers()[:min(len(h.Peers()), mostOwners)]
	live, free := uint64(0), uint64(0)
	for i, p := range peers {
		if lives(p.Now(), h.Region().Owners[i].Incarnation) {
			live |= 1 << i
			if !p.Avoided() {
				free |= 1 << i
			}
		}
	}
	if free == 0 {
		free = live
	}
	switch bits.OnesCount64(free) {
	case 0:
		return nil
	case 1:
		return peers[bits.TrailingZeros64(free)]
	}
	if h.Replicas() {
		return peers[bits.TrailingZeros64(free)]
	}
	return peers[v.choose(key, peers, free, &v.cursors[h.Region().ID%cursors])]
}

// choose is the number of one of the peers whose bits are set, two at least.
func (v *view) choose(key []byte, peers []*client.Peer, among uint64, c *cursor) int {
	count := bits.OnesCount64(among)
	cfg := &v.r.cfg
	if cfg.PickFunc != nil {
		members := make([]client.Member, 0, count)
		for rest := among; rest != 0; rest &= rest - 1 {
			members = append(members, peers[bits.TrailingZeros64(rest)].Member())
		}
		if n := cfg.PickFunc(key, members); n > 0 && n < count {
			return nth(among, n)
		}
		return nth(among, 0)
	}
	switch cfg.Pick {
	case Random:
		return nth(among, rand.IntN(count))
	case TwoChoices:
		a := rand.IntN(count)
		b := (a + 1 + rand.IntN(count-1)) % count
		one, other := nth(among, a), nth(among, b)
		if v.load(peers[other]) < v.load(peers[one]) {
			return other
		}
		return one
	}
	turn := int(c.next.Add(1) % uint32(count))
	if cfg.Pick == RoundRobin {
		return nth(among, turn)
	}
	best := nth(among, turn)
	least := v.load(peers[best])
	for k := 1; k < count; k++ {
		i := nth(among, (turn+k)%count)
		if load := v.load(peers[i]); load < least {
			best, least = i, load
		}
	}
	return best
}

func (v *view) load(p *client.Peer) int64 {
	if v.r.cfg.Load != nil {
		return v.r.cfg.Load(p.Member())
	}
	return p.Pending()
}

// nth is the place of a set bit, counted from 0.
func nth(among uint64, n int) int {
	for ; n > 0; n-- {
		among &= among - 1
	}
	return bits.TrailingZeros64(among)
}
