package claims

// line is the claims of one keyspace that are not answered: open, so many bytes. It is guarded
// by Desk.mu.
type line struct {
	open, bytes int
	// again and waiting are those that were not sent: again have been looked at before, and go first.
	again, waiting []*claim
}

// bytes is about what a claim takes.
func (c *claim) bytes() int { return len(c.at.key) + len(c.why) + commandBytes }

// countLocked counts a claim that comes, or forgets one that is answered.
func (d *Desk) countLocked(c *claim, by int) {
	l := d.lines[c.at.keyspace]
	l.open += by
	l.bytes += by * c.bytes()
	d.bytes += by * c.bytes()
	if by < 0 {
		delete(d.open, c.at)
	}
	if l.open == 0 {
		delete(d.lines, c.at.keyspace)
	}
}

// waitLocked has a claim wait to be sent.
func (d *Desk) waitLocked(c *claim, again bool) {
	l := d.lines[c.at.keyspace]
	if len(l.again)+len(l.waiting) == 0 {
		d.turns = append(d.turns, l)
	}
	if again {
		l.again = append(l.again, c)
	} else {
		l.waiting = append(l.waiting, c)
	}
}

// wait has claims wait that were looked at before.
func (d *Desk) wait(claims []*claim) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range claims {
		d.waitLocked(c, true)
	}
}

// take is the claim that is to be sent next; nil: none waits. Keyspaces take turns, so that many
// claims of one hold up none of another.
func (d *Desk) take() *claim {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.turns) == 0 {
		d.turns = nil
		return nil
	}
	l := d.turns[0]
	d.turns[0], d.turns = nil, d.turns[1:]
	c := pop(&l.again)
	if c == nil {
		c = pop(&l.waiting)
	}
	if len(l.again)+len(l.waiting) > 0 {
		d.turns = append(d.turns, l)
	}
	return c
}

func pop(queue *[]*claim) (c *claim) {
	q := *queue
	if len(q) == 0 {
		*queue = nil
		return nil
	}
	c, q[0] = q[0], nil
	*queue = q[1:]
	return c
}
