// Package local is what a reference store has on disk: its recovery catalog and the
// data of its regions, in one bbolt file of its workdir.
//
// It is recovery state, so that a store can start again while no coordinator answers;
// what is true of regions the root decides. It owns the file and judges nothing that
// is about regions. It promises:
//
//  1. What a change returned for is on disk, all of it or, behind an error, none of it. One
//     that finds no room on the disk is refused with ErrNoRoom, and others may follow.
//  2. A workdir is of one store, cluster and keyspace: another one is refused, by name. One
//     process uses it: the lock is on the folder itself, and a folder that was moved or
//     removed is not written any more.
//  3. A file that is cut short, damaged or somebody else's is refused with its name, and
//     not changed. Records and values carry checksums: damage is never answered as data.
//  4. The version of a key rises with every change of it, also behind a delete.
//  5. Writers that come while one is on its way to the disk share the next fsync.
package local

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nokv/nokv/internal/disk"
	storev1 "github.com/nokv/nokv/proto/nokv/store/v1"
	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
	"google.golang.org/protobuf/proto"
)

// File is the name of the file in a workdir.
const File = "store.db"

const (
	format      = 1
	filePerm    = 0o600
	dirPerm     = 0o700
	lockTimeout = time.Second
)

var (
	workdirBucket = []byte("workdir")
	catalogBucket = []byte("catalog")
	dataBucket    = []byte("data")
	identityKey   = []byte("identity")
)

// ErrDamaged is the cause of errors about bytes that are not what was written.
var ErrDamaged = errors.New("damaged: restore this folder, or give the store an empty one and publish its regions anew; nothing was changed")

// ErrNoRoom refuses a change because the disk is full: nothing was changed.
var ErrNoRoom = errors.New("the disk is full: make room")

// Disk is an open workdir. Its methods may overlap.
type Disk struct {
	path   string
	lock   disk.Lock
	db     *bbolt.DB
	writes commits
	// broken is why a commit failed. What the kernel made of its bytes nobody knows, so
	// that no other one is tried.
	broken atomic.Pointer[error]
}

// Open opens the workdir of a store, and makes it when it is empty or missing.
func Open(dir string, storeID uint64) (*Disk, error) {
	path := filepath.Join(dir, File)
	if err := os.MkdirAll(dir, dirPerm); err != nil {
		return nil, fmt.Errorf("make workdir: %w", err)
	}
	lock, err := disk.OS().Lock(dir)
	if errors.Is(err, disk.ErrLocked) {
		return nil, inUse(dir)
	} else if err != nil {
		return nil, fmt.Errorf("open workdir: %w", err)
	}
	d := &Disk{path: path, lock: lock}
	if err := d.open(dir, storeID); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func (d *Disk) open(dir string, storeID uint64) error {
	path := d.path
	switch _, err := os.Stat(path); {
	case errors.Is(err, os.ErrNotExist):
		if err := create(dir, path, storeID); err != nil {
			return err
		}
	case err != nil:
		return fmt.Errorf("open workdir: %w", err)
	}
	var err error
	if d.db, err = openFile(path); err != nil {
		return err
	}
	d.writes.db = d
	return d.check(storeID)
}

// Close ends it. Nothing else may be under way.
func (d *Disk) Close() error {
	var err error
	if d.db != nil {
		err = d.db.Close()
	}
	return errors.Join(err, d.lock.Close())
}

func inUse(what string) error {
	return fmt.Errorf("%s is in use: another process has this workdir; stop it or choose another folder", what)
}

// create makes the file beside its place, whole, and puts it there: a crash leaves
// either no file or one that can be opened.
func create(dir, path string, storeID uint64) error {
	there, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("open workdir: %w", err)
	}
	tmp := path + ".new"
	for _, f := range there {
		if name := f.Name(); name != filepath.Base(tmp) && name != "lost+found" {
			return fmt.Errorf("workdir %s has %s and no %s: it is not a store's; give the store an empty folder of its own", dir, name, File)
		}
	}
	if err := os.Remove(tmp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("make %s: %w", path, err)
	}
	db, err := bbolt.Open(tmp, filePerm, &bbolt.Options{Timeout: lockTimeout})
	if err != nil {
		return fmt.Errorf("make %s: %w", path, err)
	}
	id := make([]byte, 8)
	_, _ = rand.Read(id) // never fails: crypto/rand crashes the process instead
	err = db.Update(func(tx *bbolt.Tx) error {
		for _, name := range [][]byte{workdirBucket, catalogBucket, dataBucket} {
			if _, err := tx.CreateBucket(name); err != nil {
				return err
			}
		}
		return putRecord(tx.Bucket(workdirBucket), identityKey, &storev1.Workdir{Format: format, StoreId: storeID, Id: id})
	})
	if err = errors.Join(err, db.Close()); err != nil {
		return fmt.Errorf("make %s: %w", path, err)
	}
	// A crash here leaves a file that the next start removes.
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("make %s: %w", path, err)
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync workdir: %w", err)
	}
	return errors.Join(f.Sync(), f.Close())
}

// openFile opens a file that is there. bbolt maps it: reading what a file that was cut
// short does not have any more is a fault, which guard makes an error of.
func openFile(path string) (db *bbolt.DB, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	if info.Size() == 0 { // bbolt would make a new one of it
		return nil, fmt.Errorf("%s is empty: %w", path, ErrDamaged)
	}
	err = guard(func() error {
		db, err = bbolt.Open(path, filePerm, &bbolt.Options{Timeout: lockTimeout})
		return err
	})
	switch {
	case errors.Is(err, berrors.ErrTimeout):
		return nil, inUse(path)
	case errors.Is(err, berrors.ErrInvalid), errors.Is(err, berrors.ErrChecksum), errors.Is(err, berrors.ErrVersionMismatch):
		return nil, fmt.Errorf("%s is no store's file (%v): %w", path, err, ErrDamaged)
	case err != nil:
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	err = guard(func() error {
		return db.View(func(tx *bbolt.Tx) error {
			if tx.Size() > info.Size() {
				return fmt.Errorf("it has %d bytes of %d: %w", info.Size(), tx.Size(), ErrDamaged)
			}
			return nil
		})
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", path, err), db.Close())
	}
	return db, nil
}

// guard makes an error of what bbolt does when it follows bytes that are not its own.
func guard(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v: %w", p, ErrDamaged)
		}
	}()
	return f()
}

// check judges whose file it is.
func (d *Disk) check(storeID uint64) error {
	w, err := d.Identity()
	switch {
	case err != nil:
		return err
	case w.GetFormat() != format:
		return fmt.Errorf("%s has format %d, and this build reads %d: use the build that wrote it", d.path, w.GetFormat(), format)
	case w.GetStoreId() != storeID:
		return fmt.Errorf("%s is the workdir of store %d, not of store %d: start it with --store-id %[2]d, or give store %[3]d a folder of its own",
			filepath.Dir(d.path), w.GetStoreId(), storeID)
	}
	return nil
}

// Identity is whose workdir it is.
func (d *Disk) Identity() (*storev1.Workdir, error) {
	w := new(storev1.Workdir)
	err := d.view(func(tx *bbolt.Tx) error {
		b, err := bucket(tx, workdirBucket)
		if err != nil {
			return err
		}
		return getRecord(b, identityKey, w)
	})
	return w, err
}

// Bind makes the workdir that of a cluster and a keyspace, or refuses if it is that of
// others.
func (d *Disk) Bind(cluster uint64, keyspace uint32) error {
	w, err := d.Identity()
	if err != nil {
		return err
	}
	switch {
	case w.GetClusterId() == cluster && w.GetKeyspaceId() == keyspace:
		return nil
	case w.GetClusterId() != 0 && w.GetClusterId() != cluster:
		return fmt.Errorf("%s belongs to cluster %016x, and the coordinators are of cluster %016x: check --coordinator-addr, or, if that cluster is restored from a backup of this one, start the store with --rebind once",
			filepath.Dir(d.path), w.GetClusterId(), cluster)
	case w.GetKeyspaceId() != 0 && w.GetKeyspaceId() != keyspace:
		return fmt.Errorf("%s has regions of keyspace %d, not of %d: check --keyspace, or give the store an empty folder", filepath.Dir(d.path), w.GetKeyspaceId(), keyspace)
	}
	w.ClusterId, w.KeyspaceId = cluster, keyspace
	return d.update(func(tx *bbolt.Tx) error { return putRecord(tx.Bucket(workdirBucket), identityKey, w) })
}

// ErrOlder refuses a folder that is not the last one that ran as its store.
var ErrOlder = errors.New("is an older copy, or one of two")

// Live notes that a process on this folder is to register with a nonce, when rooted is the
// nonce of the last registration; 0: there was none. If that was of no process on this
// folder, as it is, another copy of it has run since, and what that wrote is not here.
func (d *Disk) Live(rooted, nonce uint64) error {
	w, err := d.Identity()
	if err != nil {
		return err
	}
	at := slices.Index(w.GetStartNonces(), rooted)
	if rooted != 0 && at < 0 && len(w.GetStartNonces()) > 0 {
		return fmt.Errorf("%s %w: another folder has run as store %d since, and what that has written is not here. Start the store with that one, or take this one as it is with --rebind",
			filepath.Dir(d.path), ErrOlder, w.GetStoreId())
	}
	// One that was tried may still come to be rooted, until another one is.
	tried := w.GetStartNonces()[max(at, 0):]
	if at < 0 && rooted != 0 {
		tried = []uint64{rooted}
	}
	if !slices.Contains(tried, nonce) {
		if len(tried) == maxNonces {
			tried = slices.Delete(tried, 1, 2)
		}
		tried = append(tried, nonce)
	}
	w.StartNonces = tried
	return d.update(func(tx *bbolt.Tx) error { return putRecord(tx.Bucket(workdirBucket), identityKey, w) })
}

// maxNonces bounds what is remembered of processes that did not come to be rooted.
const maxNonces = 16

// Rebind has the next cluster that answers take the folder as it is: one that was restored,
// or the same one behind an older copy of the folder. What of the catalog the root does not
// have it drops.
func (d *Disk) Rebind() error {
	regions, err := d.Regions()
	if err != nil {
		return err
	}
	w, err := d.Identity()
	if err != nil {
		return err
	}
	w.ClusterId, w.KeyspaceId, w.StartNonces = 0, 0, nil
	return d.update(func(tx *bbolt.Tx) error {
		for _, r := range regions {
			r.Region.Revision = 0 // that of another log: whatever the root says is newer
			if err := putRecord(tx.Bucket(catalogBucket), regionKey(r.GetRegion().GetId()), r); err != nil {
				return err
			}
		}
		return putRecord(tx.Bucket(workdirBucket), identityKey, w)
	})
}

func (d *Disk) view(f func(*bbolt.Tx) error) error {
	return d.named(guard(func() error { return d.db.View(f) }))
}

func (d *Disk) update(f func(*bbolt.Tx) error) error {
	if why := d.broken.Load(); why != nil {
		return *why
	}
	if err := d.lock.Held(); err != nil {
		return d.fail(err)
	}
	var refused error
	err := guard(func() error {
		return d.db.Update(func(tx *bbolt.Tx) error {
			refused = f(tx)
			return refused
		})
	})
	if err == nil || refused != nil {
		return d.named(err)
	}
	// bbolt writes pages that nothing leads to, and then the one that leads to them, which
	// has its place: a page that finds none has changed nothing.
	if page, ok := errors.AsType[*fs.PathError](err); ok && page.Op == "write" && disk.NoRoom(err) {
		return fmt.Errorf("%w (%v)", ErrNoRoom, err)
	}
	return d.fail(err)
}

// fail has nothing written any more.
func (d *Disk) fail(err error) error {
	err = fmt.Errorf("write %s: %w", d.path, err)
	d.broken.CompareAndSwap(nil, &err)
	return err
}

// Broken is why nothing can be written any more; nil: it can.
func (d *Disk) Broken() error {
	if why := d.broken.Load(); why != nil {
		return *why
	}
	return nil
}

// named adds the file to what is wrong with its bytes.
func (d *Disk) named(err error) error {
	if err == nil || !errors.Is(err, ErrDamaged) {
		return err
	}
	return fmt.Errorf("%s: %w", d.path, err)
}

// bucket is one that create has made.
func bucket(tx *bbolt.Tx, name []byte) (*bbolt.Bucket, error) {
	if b := tx.Bucket(name); b != nil {
		return b, nil
	}
	return nil, fmt.Errorf("there is no bucket %s: %w", name, ErrDamaged)
}

// putRecord writes a message with its checksum.
func putRecord(b *bbolt.Bucket, key []byte, m proto.Message) error {
	raw, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	return b.Put(key, seal(raw))
}

func getRecord(b *bbolt.Bucket, key []byte, m proto.Message) error {
	return readRecord(key, b.Get(key), m)
}

func readRecord(key, sealed []byte, m proto.Message) error {
	raw, ok := unseal(sealed)
	if !ok || proto.Unmarshal(bytes.Clone(raw), m) != nil {
		return fmt.Errorf("record %s: %w", hex.EncodeToString(key), ErrDamaged)
	}
	return nil
}
