package local

import (
	"encoding/binary"

	storev1 "github.com/nokv/nokv/proto/nokv/store/v1"
	"github.com/nokv/nokv/rooted"
	"go.etcd.io/bbolt"
)

// Regions are the records of the recovery catalog, in the order of their ids.
func (d *Disk) Regions() (all []*storev1.LocalRegion, err error) {
	err = d.view(func(tx *bbolt.Tx) error {
		b, err := bucket(tx, catalogBucket)
		if err != nil {
			return err
		}
		return b.ForEach(func(k, v []byte) error {
			r := new(storev1.LocalRegion)
			if err := readRecord(k, v, r); err != nil {
				return err
			}
			all = append(all, r)
			return nil
		})
	})
	return all, err
}

// Keep writes records of the catalog, and drops others, in one step.
func (d *Disk) Keep(records []*storev1.LocalRegion, dropped ...rooted.RegionID) error {
	return d.update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(catalogBucket)
		for _, id := range dropped {
			if err := b.Delete(regionKey(uint64(id))); err != nil {
				return err
			}
		}
		for _, r := range records {
			if err := putRecord(b, regionKey(r.GetRegion().GetId()), r); err != nil {
				return err
			}
		}
		return nil
	})
}

func regionKey(id uint64) []byte { return binary.BigEndian.AppendUint64(nil, id) }
