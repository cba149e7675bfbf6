package explorer

import (
	"fmt"
	"strings"
)

// describe says what a step did.
func (m *model) describe(w *world, s step, next *world) string {
	name := fmt.Sprintf("coordinator %d", s.who+1)
	client := fmt.Sprintf("client %d", m.clientOf(s.at)+1)
	p, q := &w.processes[s.who%maxProcesses], &next.processes[s.who%maxProcesses]
	c := &next.calls[s.at%maxCalls]
	switch s.do {
	case electLeader:
		return "another root leader is elected"
	case passTime:
		return m.describeTime(w, s.who, next)
	case crash:
		return name + " crashes and starts again"
	case shutDown:
		return name + " is told to shut down"
	case drained:
		return fmt.Sprintf("%s sends that it retires era %d at exactly %d", name, q.retire, q.retireAt)
	case giveUp:
		return fmt.Sprintf("%s gives era %d up, to claim over it", name, p.held)
	case sendClaim:
		if claim(s.at) == claimedOver {
			return fmt.Sprintf("%s claims; the leader finds era %d expired and proposes", name, m.root(w).era)
		}
		return name + " claims; the leader proposes"
	case repeatClaim:
		return name + " repeats its claim, which is found applied"
	case commitClaim:
		return fmt.Sprintf("the claim of %s is committed: era %d above %d", name, m.root(next).era, m.root(next).fence)
	case commitOrphan:
		return fmt.Sprintf("a dead process's claim is committed: era %d", m.root(next).era)
	case commitLate:
		return fmt.Sprintf("an old claim of %s arrives and is committed: era %d above %d", name, m.root(next).era, m.root(next).fence)
	case hearGrant:
		return fmt.Sprintf("%s hears that era %d is its own", name, p.grant)
	case hearOver:
		return fmt.Sprintf("%s hears that era %d is over", name, p.held)
	case sendConfirm:
		return fmt.Sprintf("%s asks to confirm era %d", name, p.held)
	case judgeConfirm:
		if q.flights[s.at].is == answeredActive {
			return fmt.Sprintf("the leader confirms era %d of %s", p.held, name)
		}
		return fmt.Sprintf("the leader says that era %d of %s is over", p.held, name)
	case hearConfirm:
		if q.held == 0 {
			return name + " hears that its era is over"
		}
		return fmt.Sprintf("%s hears the confirmation of era %d%s", name, p.held, m.describeLeft(q))
	case loseConfirm:
		return fmt.Sprintf("%s gives a confirmation up", name)
	default:
		return m.describeRest(w, s, next, name, client, p, q, c)
	}
}

func (m *model) describeRest(w *world, s step, next *world, name, client string, p, q *process, c *call) string {
	switch s.do {
	case askWindow:
		return fmt.Sprintf("%s asks for the window (%d, %d]", name, q.askFrom, q.askUpTo)
	case judgeWindow:
		return fmt.Sprintf("the root judges the window (%d, %d] of %s: the fence is %d", p.askFrom, p.askUpTo, name, m.root(next).fence)
	case hearWindow:
		return fmt.Sprintf("%s hears about its window", name)
	case loseWindow:
		return fmt.Sprintf("the answer about the window of %s is lost; it asks again", name)
	case advance:
		return fmt.Sprintf("%s moves the handover to stage %d", name, s.at)
	case commitRetire:
		return fmt.Sprintf("the root hears that %s retires era %d at %d: the fence is %d", name, p.retire, p.retireAt, m.root(next).fence)
	case loseRetire:
		return fmt.Sprintf("the word of %s that it retires is lost", name)
	case takeValue:
		also := ""
		if c.is == served {
			also = ", which was checked before, and replies"
		}
		return fmt.Sprintf("%s calls %s, which takes %d in era %d%s", client, name, c.value, c.reign.era(), also)
	case checkValue:
		if c.is == served {
			return fmt.Sprintf("%s checks %d and replies", name, w.calls[s.at].value)
		}
		return fmt.Sprintf("%s checks %d and must wait for a confirmation", name, w.calls[s.at].value)
	case checkFirst:
		return name + " asks its guard ahead of calls"
	case hearReply:
		old := &w.calls[s.at]
		return fmt.Sprintf("%s gets the reply %d of era %d", client, old.value, old.reign.era())
	case loseReply:
		return fmt.Sprintf("%s never gets its reply", client)
	case hearEra:
		return fmt.Sprintf("%s sees era %d", client, m.root(w).era)
	case giveRootID:
		return fmt.Sprintf("the root gives id %d to a region", m.root(next).fence)
	case releaseWindow:
		return fmt.Sprintf("the leader finds era %d expired and gives its window back: the fence is %d", m.root(w).era, m.root(next).fence)
	case backUp:
		return "a backup is taken"
	case restoreRoot:
		return fmt.Sprintf("the root is restored from the backup: incarnation %d, era %d, fence %d", next.incarnation, m.root(next).era, m.root(next).fence)
	}
	return fmt.Sprintf("step %d", s.do)
}

func (m *model) describeLeft(p *process) string {
	if m.ttl == 0 {
		return ""
	}
	return fmt.Sprintf("; it holds for %d more", p.left)
}

func (m *model) describeTime(w *world, rate uint8, next *world) string {
	var b strings.Builder
	fmt.Fprintf(&b, "time passes: the leader's clock counts %d", rate)
	for i := range m.processes {
		p, q := &w.processes[i], &next.processes[i]
		if *p != *q {
			fmt.Fprintf(&b, "; coordinator %d's era %d holds for %d more, not %d", i+1, p.held, q.left, p.left)
		}
	}
	return b.String()
}
