// Package mtls makes the credentials of every listener and dialer from one
// folder of certificates.
//
// It owns nothing but what it has read. A nil *Source is a process without
// certificates: its credentials are those of plain text, and nobody has a name.
//
// Promises:
//
//  1. Whoever a connection is with has a certificate of a CA in ca.crt that names
//     one principal of this process's own cluster; a dialer says which role and, where
//     it means one in particular, which name. No host name is looked at. A listener that
//     has something for callers without a certificate says so: HTTPOpen, HandlerOpen.
//  2. TLS 1.3, and no session is resumed: each connection proves anew who it is.
//  3. A connection ends when a certificate ends that it was opened with, whichever
//     side's (an HTTP listener's: its caller's), at most a minute early; and within ten seconds of the moment when ca.crt
//     no longer has a CA that the other side's comes from. It ends at once when Revoke
//     names the other side's, with whatever is under way on it.
//  4. Files that change are read again within a second of the next handshake, and
//     every ten seconds while connections are open.
//     What cannot be used, or makes another principal of the process, changes
//     nothing: what was read before stays, with one warning. A key that every user
//     of the machine can read cannot be used.
//  5. Whoever is refused is told in one sentence who came, who was expected and
//     what to do, as far as TLS lets it.
package mtls

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nokv/nokv/mtls/principal"
)

// Names of the files in a folder of certificates, those of a Kubernetes TLS
// secret: the certificate and what signed it, its key, and the CAs to believe.
const (
	CertFile = "tls.crt"
	KeyFile  = "tls.key"
	CAFile   = "ca.crt"
)

// BesideSuffix ends the names of files that are to take the places of those, all when all are there.
const BesideSuffix = ".tmp"

// maxFileBytes bounds each of the files.
const maxFileBytes = 1 << 20

// rereadEvery is how often at most handshakes look whether the files changed.
const rereadEvery = time.Second

// Options of a Source. The zero value is of use.
type Options struct {
	// Logger hears of files that were read again or cannot be used; default none.
	Logger hclog.Logger
	// Now is the wall clock that certificates are judged by; default time.Now.
	Now func() time.Time
}

// Source is a folder of certificates, as it is now. Its methods may overlap.
type Source struct {
	dir string
	log hclog.Logger
	now func() time.Time

	// reading is held by the one that looks at the files; nobody waits for it.
	reading atomic.Bool
	// looked is when that was last, in Unix nanoseconds.
	looked atomic.Int64
	used   atomic.Pointer[bundle]
	// revoked are the certificates that Revoke named, open the connections that it may end: each a *lifetime, as a key.
	revoked revocations
	open    sync.Map
	// listening is closed, once, with the first listener.
	listening  chan struct{}
	listenOnce sync.Once
	// complaint is why the files as they are cannot be used; owned by the holder
	// of reading.
	complaint string
	refusals  atomic.Uint64
	// told is when one was last logged, in Unix nanoseconds.
	told atomic.Int64
}

// Open reads a folder. It fails when the files are not there, do not belong
// together or are not valid now.
func Open(dir string, o Options) (*Source, error) {
	s := &Source{dir: dir, log: o.Logger, now: o.Now, listening: make(chan struct{})}
	if s.log == nil {
		s.log = hclog.NewNullLogger()
	}
	if s.now == nil {
		s.now = time.Now
	}
	b, err := s.settled()
	if err != nil {
		return nil, err
	}
	s.used.Store(b)
	s.looked.Store(s.now().UnixNano())
	return s, nil
}

// settled reads the folder until it is not between two of the renames of a renewal: what cannot be used and is
// other files by now, or has the next ones beside it still, is read again. A renewal that was broken off leaves
// such files for good, and is waited for a second.
func (s *Source) settled() (*bundle, error) {
	var before files
	for tries := 0; ; tries++ {
		waiting, _ := filepath.Glob(filepath.Join(s.dir, "*"+BesideSuffix)) // before the rest is read: it may end meanwhile
		f, err := readFiles(s.dir)
		if err != nil {
			return nil, err
		}
		b, err := s.parse(f)
		if err == nil {
			return b, nil
		}
		if tries > 0 && f.equal(before) && len(waiting) == 0 || tries >= 100 {
			return nil, err
		}
		before = f
		if tries > 0 {
			time.Sleep(10 * time.Millisecond) // nothing tells of the end of another process's renewal
		}
	}
}

// Exposed says of a key's file that every user of this machine can read or write it,
// and what to do; nil when that is not so, or there is none.
func Exposed(name string) error {
	info, err := os.Stat(name)
	if err != nil || info.Mode().Perm()&0o006 == 0 {
		return nil
	}
	return fmt.Errorf("%s is for every user of this machine to read or write (mode %04o): chmod o= %[1]s, and make another key if somebody may have read it", name, info.Mode().Perm())
}

// Principal is that of the own certificate now; nobody for a nil Source.
func (s *Source) Principal() principal.Principal {
	if s == nil {
		return principal.Principal{}
	}
	return s.current().own
}

// Expires is when the own certificate ends, or the CA's that signed it if that is
// earlier; the zero time for a nil Source.
func (s *Source) Expires() time.Time {
	if s == nil {
		return time.Time{}
	}
	return s.current().expires
}

// Usable is a *Refusal when the own certificate has ended: no connection can be made
// with it. It is nil for a nil Source.
func (s *Source) Usable() error {
	if s == nil {
		return nil
	}
	return s.current().usable(s.now())
}

// Dir is the folder; empty for a nil Source.
func (s *Source) Dir() string {
	if s == nil {
		return ""
	}
	return s.dir
}

// current is what handshakes use now: the files are looked at again when that was
// not done for a second.
func (s *Source) current() *bundle {
	now := s.now().UnixNano()
	// A clock that was set back must not stop the looking.
	if d := time.Duration(now - s.looked.Load()); (d >= rereadEvery || d < 0) && s.reading.CompareAndSwap(false, true) {
		defer s.reading.Store(false)
		s.looked.Store(now)
		s.reread()
	}
	return s.used.Load()
}

// reread takes over files that changed and can be used. The caller holds reading.
// Renaming three files is not atomic: a pair that does not match is there for a
// moment in each renewal, so that what cannot be used is tried again each time.
func (s *Source) reread() {
	before := s.used.Load()
	f, err := readFiles(s.dir)
	if err == nil && f.equal(before.files) {
		if s.complaint != "" {
			s.complaint = ""
			s.log.Info("the certificates are what they were before", "dir", s.dir)
		}
		return
	}
	var b *bundle
	if err == nil {
		b, err = s.parse(f)
	}
	if err == nil && b.own != before.own {
		err = fmt.Errorf("%s names %s of cluster %s, and this process is %s of cluster %s: put its own back, or restart it", filepath.Join(s.dir, CertFile), b.own, b.own.Cluster, before.own, before.own.Cluster)
	}
	if err != nil {
		if s.complaint != err.Error() {
			s.complaint = err.Error()
			s.log.Warn("the certificates changed and cannot be used: those read before stay in use", "dir", s.dir, "expires", before.expires, "err", err)
		}
		return
	}
	s.complaint = ""
	s.used.Store(b)
	s.log.Info("certificates read again", "dir", s.dir, "principal", b.own, "expires", b.expires)
}

// files are the contents of a folder.
type files struct{ cert, key, ca []byte }

func (f files) equal(o files) bool {
	return bytes.Equal(f.cert, o.cert) && bytes.Equal(f.key, o.key) && bytes.Equal(f.ca, o.ca)
}

func readFiles(dir string) (f files, err error) {
	for _, x := range []struct {
		name string
		to   *[]byte
	}{{CertFile, &f.cert}, {KeyFile, &f.key}, {CAFile, &f.ca}} {
		if *x.to, err = readFile(filepath.Join(dir, x.name)); err != nil {
			return files{}, fmt.Errorf("%w; a folder of certificates has %s, %s and %s: nokv cert issue makes one", err, CertFile, KeyFile, CAFile)
		}
	}
	return f, Exposed(filepath.Join(dir, KeyFile)) // whoever has it can be its principal
}

func readFile(name string) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	raw, err := io.ReadAll(io.LimitReader(file, maxFileBytes+1))
	if err != nil {
		return nil, err
	}
	if len(raw) > maxFileBytes {
		return nil, fmt.Errorf("%s has more than %d bytes", name, maxFileBytes)
	}
	return raw, nil
}

// Run looks at the files each minute, where no connection does, and warns of the end of the certificates once
// a day, until ctx ends. Handshakes need it not.
func (s *Source) Run(ctx context.Context) {
	if s == nil {
		<-ctx.Done()
		return
	}
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	var warned time.Time
	for {
		b, now := s.current(), s.now()
		if left := b.expires.Sub(now); left < b.warn && now.Sub(warned) >= 24*time.Hour {
			warned = now
			s.log.Warn("the certificates end soon: renew them with nokv cert renew", "dir", s.dir, "expires", b.expires, "days", Days(left))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// Days are whole days, rounded down.
func Days(d time.Duration) int {
	n := int(d / (24 * time.Hour))
	if d < 0 {
		n--
	}
	return n
}
