package storage_test

import (
	"fmt"
	"testing"

	"github.com/nokv/nokv/internal/disk"
	"github.com/nokv/nokv/meta/root/storage"
)

// TestDeepWorkdirSurvivesAPowerCut: the folders above the workdir were made by
// Open as well; what is acknowledged in it is not lost with one of them, also
// when Open was killed on its way down.
func TestDeepWorkdirSurvivesAPowerCut(t *testing.T) {
	const deep = "artifacts/cluster/meta-root-1"
	for kill := range 12 {
		for seed := range uint64(20) {
			t.Run(fmt.Sprintf("kill=%d/seed=%d", kill, seed), func(t *testing.T) {
				f := disk.NewFake(seed)
				if kill > 0 {
					f.SetFault(func(op disk.Op) disk.Fault { return disk.Fault{Crash: op.N >= kill, Effect: true} })
					if _, err := storage.Open(deep, onFake(f)); err == nil {
						t.Fatal("the process was not killed")
					}
					f.SetFault(nil)
					f.Kill()
				}
				s, err := storage.Open(deep, onFake(f))
				must(t, err)
				must(t, s.Append(hard(1, 1, 0), entries(1, 4, 1, 0), true))
				f.Reboot()
				s, err = storage.Open(deep, onFake(f))
				must(t, err)
				if last, _ := s.LastIndex(); last != 3 {
					t.Fatalf("last index %d of 3 acknowledged", last)
				}
			})
		}
	}
}
