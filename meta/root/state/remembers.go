package state

import rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"

// Remembers says whether a command of an identity was judged before and is still
// remembered: whoever sends it again is answered with what became of it.
func (s *State) Remembers(id *rootv1.CommandIdentity) bool {
	if id.GetOrigin() == 0 {
		return false
	}
	c := &s.commands
	if c.last.newest() <= id.GetKnownIndex() && len(c.last.rows) > 0 {
		return false
	}
	// The table of the last chunk may be another State's to write, its rows are not.
	for row := range c.last.rows {
		if r := &c.last.rows[row]; r.origin == id.GetOrigin() && r.sequence == id.GetSequence() {
			return true
		}
	}
	for i := len(c.full) - 1; i >= 0 && c.full[i].newest() > id.GetKnownIndex(); i-- {
		if c.full[i].find(id.GetOrigin(), id.GetSequence()) >= 0 {
			return true
		}
	}
	return false
}
