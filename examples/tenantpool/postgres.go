package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/nokv/nokv/internal/procs"
)

// at is the connection string of a server in a folder: it has a socket there, and no port.
func at(dir string) string { return "host=" + dir + " user=tenantpool dbname=postgres" }

// servePostgres runs a PostgreSQL server in an empty folder until ctx ends, and empties it again.
// PostgreSQL refuses to run as root: for root it runs as the user postgres, or nobody, who gets the
// folder, which is closed to all others. Who can reach the socket is let in.
func servePostgres(ctx context.Context, dir string, say func(string)) (err error) {
	if dir == "" {
		return errors.New("say where the data of PostgreSQL go: --dir, an empty folder such as mktemp -d makes")
	}
	dir, err = filepath.Abs(dir)
	if err != nil {
		return err
	}
	switch found, err := os.ReadDir(dir); {
	case err != nil:
		return err
	case len(found) > 0:
		return fmt.Errorf("%s is not empty: give an empty folder, what is in it is removed in the end", dir)
	case len(dir) > 80:
		return fmt.Errorf("%s is too long for the path of a socket: give one in /tmp", dir)
	}
	as, err := unprivileged(dir)
	if err != nil {
		return err
	}
	data := filepath.Join(dir, "data")
	defer func() {
		found, _ := filepath.Glob(filepath.Join(dir, "*"))
		for _, path := range append(found, filepath.Join(dir, ".s.PGSQL.5432.lock")) {
			err = errors.Join(err, os.RemoveAll(path))
		}
	}()
	initdb, err := command(ctx, "initdb", as, dir, "-D", data, "-U", "tenantpool", "--auth", "trust", "--no-sync", "--no-instructions", "--locale", "C", "--encoding", "UTF8")
	if err != nil {
		return err
	}
	if said, err := initdb.CombinedOutput(); ctx.Err() != nil {
		return nil
	} else if err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, said)
	}
	// What is in it is thrown away in the end, so that nothing has to reach the disk.
	server, err := command(context.WithoutCancel(ctx), "postgres", as, dir, "-D", data, "-k", dir, "-c", "listen_addresses=", "-c", "port=5432", "-c", "fsync=off", "-c", "log_min_messages=fatal")
	if err != nil {
		return err
	}
	server.Stdout, server.Stderr = os.Stdout, os.Stderr
	if err := server.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	alive, gone := context.WithCancel(ctx)
	defer gone()
	go func() {
		defer gone()
		ended <- server.Wait()
	}()
	err = answers(alive, at(dir))
	if err == nil {
		say("PostgreSQL runs: " + at(dir))
		<-alive.Done()
	}
	_ = server.Process.Signal(syscall.SIGINT) // it ends those that it serves, and itself
	end := <-ended
	switch {
	case ctx.Err() != nil:
		return nil
	case err != nil:
		return errors.Join(err, end)
	}
	return fmt.Errorf("PostgreSQL has ended: %w", end)
}

// unprivileged is the user whom PostgreSQL runs as, to whom the folder is given; nil: this one.
func unprivileged(dir string) (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			return nil, err
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			return nil, err
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, errors.Join(os.Chmod(dir, 0o700), os.Chown(dir, int(uid), int(gid)))
	}
	return nil, errors.New("PostgreSQL does not run as root, and there is neither a user postgres nor nobody: run this as another user")
}

// command is one of PostgreSQL, which ends with this process, and with what it has started when ctx does.
func command(ctx context.Context, name string, as *syscall.Credential, dir string, args ...string) (*exec.Cmd, error) {
	path, err := program(name)
	if err != nil {
		return nil, err
	}
	c := exec.CommandContext(ctx, path, args...)
	c.Dir, c.SysProcAttr = dir, procs.Attributes()
	c.SysProcAttr.Credential = as
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGINT) } // as Ctrl-C does
	return c, nil
}

// program finds one of PostgreSQL, which Debian does not have in the path.
func program(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if len(found) == 0 {
		return "", fmt.Errorf("there is no %s: install PostgreSQL, on Debian: apt-get install postgresql", name)
	}
	return slices.MaxFunc(found, func(a, b string) int { return len(a) - len(b) }), nil
}

// startWithin is how long PostgreSQL has to answer.
const startWithin = 30 * time.Second

// answers waits until PostgreSQL answers, unless that cannot come: the connection string is none, or it lets
// nobody in who comes so.
func answers(ctx context.Context, dsn string) error {
	if _, err := pgx.ParseConfig(dsn); err != nil {
		return err
	}
	within, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	var why error
	for {
		c, err := pgx.Connect(within, dsn)
		switch {
		case err == nil:
			return c.Close(ctx)
		case class(err) == badAuthorization, class(err) == badCatalog:
			return fmt.Errorf("PostgreSQL lets nobody in who comes so: %w", err)
		case within.Err() == nil || why == nil:
			why = err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-within.Done():
			return fmt.Errorf("PostgreSQL has not answered for %v: %w", startWithin, why)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Codes of PostgreSQL's errors, and classes, which are their first two characters.
const (
	undefinedTable    = "42P01"
	transactionFailed = "25P02"
	badData           = "22"
	badRow            = "23"
	badAuthorization  = "28"
	badCatalog        = "3D"
	conflict          = "40"
	noResources       = "53"
)

// codeOf is the code of an error of PostgreSQL; "": it is none.
func codeOf(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	return ""
}

func class(err error) string { return codeOf(err)[:min(2, len(codeOf(err)))] }
