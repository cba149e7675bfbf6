package seal_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nokv/nokv/internal/seal"
	"github.com/nokv/nokv/meta/root/state"
	rootv1 "github.com/nokv/nokv/proto/nokv/root/v1"
)

func TestSealed(t *testing.T) {
	k, other := seal.New(bytes.Repeat([]byte{1}, 32)), seal.New(bytes.Repeat([]byte{2}, 32))
	key := bytes.Repeat([]byte("key!"), state.KeySecretBytes/4)
	kept, sealed := k.Seal(seal.Tokens, 7, key)
	if !sealed || len(kept) != state.SealedSecretBytes || bytes.Contains(kept, []byte("key!")) {
		t.Fatalf("sealed: %v, %d bytes, the root keeps %d", sealed, len(kept), state.SealedSecretBytes)
	}
	if again, _ := k.Seal(seal.Tokens, 7, key); bytes.Equal(again, kept) {
		t.Error("sealed twice it is the same")
	}
	with := func(id uint32, secret []byte) *rootv1.PinKey {
		return &rootv1.PinKey{Id: id, Secret: secret, Sealed: true}
	}
	if got, err := k.Open(seal.Tokens, with(7, kept)); err != nil || !bytes.Equal(got, key) {
		t.Fatalf("%x, %v", got, err)
	}
	changed := bytes.Clone(kept)
	changed[30] ^= 1
	for name, c := range map[string]struct {
		by      *seal.Key
		purpose seal.Purpose
		key     *rootv1.PinKey
		want    error
	}{
		"no file":         {nil, seal.Tokens, with(7, kept), seal.ErrNoFile},
		"another file":    {other, seal.Tokens, with(7, kept), seal.ErrWrongFile},
		"another purpose": {k, seal.Pins, with(7, kept), seal.ErrWrongFile},
		"another id":      {k, seal.Tokens, with(8, kept), seal.ErrWrongFile},
		"changed":         {k, seal.Tokens, with(7, changed), seal.ErrWrongFile},
		"another version": {k, seal.Tokens, with(7, append([]byte{9}, kept[1:]...)), nil},
		"left out":        {k, seal.Tokens, with(7, nil), nil},
		"cut":             {k, seal.Tokens, with(7, kept[:13]), nil},
	} {
		got, err := c.by.Open(c.purpose, c.key)
		if got != nil || err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %x, %v", name, got, err)
		}
	}
	// Without a file nothing is sealed, and what is not is opened by everybody.
	plain, sealed := (*seal.Key)(nil).Seal(seal.Pins, 1, key)
	if sealed || !bytes.Equal(plain, key) {
		t.Error("sealed without a file")
	}
	if got, err := k.Open(seal.Pins, &rootv1.PinKey{Id: 1, Secret: plain}); err != nil || !bytes.Equal(got, key) {
		t.Errorf("%x, %v", got, err)
	}
}

func TestSecretFile(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, n int) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, bytes.Repeat([]byte("s"), n), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	if k, err := seal.Open(""); k != nil || err != nil {
		t.Errorf("no file: %v, %v", k, err)
	}
	if k, err := seal.Open(write("good", seal.MinFileBytes)); k == nil || err != nil {
		t.Errorf("a good file: %v, %v", k, err)
	}
	open := write("open", seal.MinFileBytes)
	if err := os.Chmod(open, 0o644); err != nil {
		t.Fatal(err)
	}
	if k, err := seal.Open(open); k != nil || err == nil || !strings.Contains(err.Error(), "chmod o= "+open) {
		t.Errorf("a file that everybody can read: %v, %v", k, err)
	}
	for _, file := range []string{filepath.Join(dir, "none"), dir, write("short", seal.MinFileBytes-1), write("long", seal.MaxFileBytes+1)} {
		if k, err := seal.Open(file); k != nil || err == nil || !strings.Contains(err.Error(), file) || strings.Contains(err.Error(), "ssss") {
			t.Errorf("%s: %v, %v", file, k, err)
		}
	}
}
