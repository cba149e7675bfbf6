package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// asTool is the first argument of this program where it stands before the tools of the go command.
const asTool = "tool"

// toolexec is the flag that has the go command keep what the linker makes in a folder. The go command
// itself keeps compiled packages but no test binaries: to link them again is a sixth of a run's processor
// time.
func toolexec(folder string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	folder, err = filepath.Abs(folder)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("-toolexec='%s' %s '%s'", self, asTool, folder), nil
}

// runTool runs a tool of the go command in place of this process. Of the linker it takes the result from
// the folder where it stands there: the build ID that the go command gives a binary is a sum over all
// that goes into it.
func runTool(ctx context.Context, folder string, words []string) error {
	var id, out string
	for i, w := range words {
		switch value, ok := strings.CutPrefix(w, "-buildid="); {
		case ok:
			id = value
		case w == "-o" && i+1 < len(words):
			out = words[i+1]
		}
	}
	if filepath.Base(words[0]) != "link" || id == "" || out == "" {
		return syscall.Exec(words[0], words, os.Environ())
	}
	kept := filepath.Join(folder, fmt.Sprintf("%x", sha256.Sum256([]byte(id))))
	if err := copyFile(kept, out, false); err == nil {
		now := time.Now()
		return os.Chtimes(kept, now, now)
	}
	link := exec.CommandContext(ctx, words[0], words[1:]...)
	link.Stdout, link.Stderr = os.Stdout, os.Stderr
	if err := link.Run(); err != nil {
		return err
	}
	if err := copyFile(out, kept, true); err != nil { // the binary is there: it is linked again the next time
		fmt.Fprintln(os.Stderr, "test: a binary is not kept:", err)
	}
	return nil
}

// copyFile makes a program of the same bytes, whole or not at all; durable: also where power is lost.
func copyFile(from, to string, durable bool) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	out, err := os.CreateTemp(filepath.Dir(to), ".copy-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(out.Name())
		}
	}()
	if _, err = io.Copy(out, in); err == nil && durable {
		err = out.Sync()
	}
	if err = errors.Join(err, out.Chmod(0o755), out.Close()); err != nil {
		return err
	}
	return os.Rename(out.Name(), to)
}

// forgetLinked removes what no run has used since a moment.
func forgetLinked(folder string, since time.Time) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && info.ModTime().Before(since) {
			err = os.Remove(filepath.Join(folder, e.Name()))
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}
