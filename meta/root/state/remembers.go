package state

import rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"

// Remembers says whether a command of an identity was judged before and is still
// remembered: whoever sends it again is answered with what became of it.
func (s *State) Remembers(id *rootv1.CommandIdentity) bool {
	_, _, known := s.Judged(id)
	return known
}

// Judged is what became of a command of an identity, and why it was rejected, as long as
// that is remembered.
func (s *State) Judged(id *rootv1.CommandIdentity) (outcome rootv1.Outcome, why rootv1.Reason, known bool) {
	if id.GetOrigin() == 0 {
		return 0, 0, false
	}
	c := &s.commands
	if c.last.newest() <= id.GetKnownIndex() && len(c.last.rows) > 0 {
		return 0, 0, false
	}
	// The table of the last chunk may be another State's to write, its rows are not.
	for row := range c.last.rows {
		if r := &c.last.rows[row]; r.origin == id.GetOrigin() && r.sequence == id.GetSequence() {
			return c.last.judged(row)
		}
	}
	for i := len(c.full) - 1; i >= 0 && c.full[i].newest() > id.GetKnownIndex(); i-- {
		if row := c.full[i].find(id.GetOrigin(), id.GetSequence()); row >= 0 {
			return c.full[i].judged(row)
		}
	}
	return 0, 0, false
}

func (c *chunk) judged(row int) (rootv1.Outcome, rootv1.Reason, bool) {
	switch c.about[row] &^ digestMask {
	case outcomeRejected:
		return rootv1.Outcome_OUTCOME_REJECTED, rootv1.Reason(c.rows[row].given), true
	case outcomeAlready:
		return rootv1.Outcome_OUTCOME_ALREADY_APPLIED, 0, true
	}
	return rootv1.Outcome_OUTCOME_APPLIED, 0, true
}
