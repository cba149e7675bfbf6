package rooted

import (
	"fmt"
	"strings"
	"unicode"
)

// CheckID refuses an id that nobody can tell from another by looking at it, or that names another
// folder where it is part of a path: a character that is not seen or that turns the line, a space,
// and "." or ".." as all there is between slashes.
func CheckID(what, id string) error {
	if err := CheckShown(what, id); err != nil {
		return err
	}
	if strings.Contains(id, " ") {
		return fmt.Errorf("the %s %q has a space: use letters, digits and punctuation", what, id)
	}
	for part := range strings.FieldsFuncSeq(id, func(r rune) bool { return r == '/' || r == '\\' }) {
		if part == "." || part == ".." {
			return fmt.Errorf("the %s %q has the part %q: in a path it means another folder", what, id, part)
		}
	}
	return nil
}

// CheckShown refuses a text that looks like another one where people read it.
func CheckShown(what, text string) error {
	if strings.ContainsFunc(text, unseen) {
		return fmt.Errorf("the %s %+q has a character that is not seen or that turns the line: use letters, digits and punctuation", what, text)
	}
	return nil
}

// unseen reports whether a character leaves no mark of its own: controls, marks of direction, joiners,
// spaces other than the common one, fillers and selectors of variants.
func unseen(r rune) bool {
	return r > unicode.MaxASCII && (!unicode.IsPrint(r) || unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)) || unicode.IsControl(r)
}
