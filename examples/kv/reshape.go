package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/nokv/nokv/coordinator/client"
	storev1 "github.com/nokv/nokv/proto/nokv/store/v1"
	"github.com/nokv/nokv/rooted"
	"github.com/nokv/nokv/router"
)

// What an operator, or a planner, does to regions under way. Each goes to the store that leads
// the region, which has it rooted before it serves it changed.

// split cuts the region of a key there.
func (k *kv) split(ctx context.Context, key string) error {
	return k.at(ctx, key, func(ctx context.Context, s storev1.StoreClient, at *storev1.RegionAt, t router.Target) error {
		if t.Region.Start == key {
			return nil // it is, or a repeated call had been run
		}
		_, err := s.Split(ctx, &storev1.SplitRequest{Region: at, Key: []byte(key)})
		return err
	})
}

// lead has a store lead the region of a key.
func (k *kv) lead(ctx context.Context, key string, to rooted.MemberID) error {
	return k.at(ctx, key, func(ctx context.Context, s storev1.StoreClient, at *storev1.RegionAt, t router.Target) error {
		if t.Member == to {
			return nil
		}
		_, err := s.TransferLeader(ctx, &storev1.TransferLeaderRequest{Region: at, ToMemberId: string(to)})
		return err
	})
}

// merge joins the region of a key with its right neighbour, at the store that leads the left one.
func (k *kv) merge(ctx context.Context, key string) error {
	left, err := k.control.GetRegionByKey(ctx, []byte(key), client.Strong())
	if err != nil {
		return err
	}
	if !left.Found() || left.Region.End == "" {
		return errors.New("there is no right neighbour")
	}
	if err := k.lead(ctx, left.Region.End, left.Region.Owners[0].Member); err != nil {
		return err
	}
	right, err := k.control.GetRegionByKey(ctx, []byte(left.Region.End), client.Strong())
	if err != nil {
		return err
	}
	return k.at(ctx, key, func(ctx context.Context, s storev1.StoreClient, at *storev1.RegionAt, t router.Target) error {
		if t.Region.ID != left.Region.ID || t.Region.End != left.Region.End {
			return nil
		}
		_, err := s.Merge(ctx, &storev1.MergeRequest{Left: at, Right: &storev1.RegionAt{RegionId: uint64(right.Region.ID), Epoch: right.Region.Epoch.Proto()}})
		return err
	})
}

// reshape does one of these, anywhere, and says what.
func (k *kv) reshape(ctx context.Context) string {
	key := account(rand.IntN(accounts))
	what, err := "", error(nil)
	switch rand.IntN(3) {
	case 0:
		what, err = "a split at "+key, k.split(ctx, key)
	case 1:
		to := storeName(1 + rand.IntN(stores))
		what, err = fmt.Sprintf("%s to lead the region of %s", to, key), k.lead(ctx, key, rooted.MemberID(to))
	default:
		what, err = "a merge of the region of "+key+" with the next", k.merge(ctx, key)
	}
	if err != nil {
		return fmt.Sprintf("%s: not now (%v)", what, err)
	}
	return what
}
