//! Mutants of the shards' stacks, and of the operations on all shards.

use super::{Edit, Mutant};

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "tag_not_counted",
        does: "A change of a head does not change its tag, so an old head may equal a new one.",
        file: "pool/core/shard.rs",
        edits: &[Edit { within: "fn next", right: "self.tag.wrapping_add(1)", wrong: "self.tag" }],
    },
    Mutant {
        name: "hit_without_comparing",
        does: "A hit writes the head although another thread may have changed it since it was read.",
        file: "pool/core/shard.rs",
        edits: &[Edit {
            within: "fn try_pop",
            right: "self.swap(head, below).ok()?;",
            wrong: "self.0.store(below.pack(), Ordering::Release);",
        }],
    },
    Mutant {
        name: "noted_slot_is_taken_without_comparing",
        does: "A hit takes the noted slot although another thread may have changed the head since it was compared.",
        file: "pool/core/shard.rs",
        edits: &[Edit {
            within: "fn pop_from",
            right: "self.swap(with.head(), below).ok()?;",
            wrong: "self.0.store(below.pack(), Ordering::Release);",
        }],
    },
    Mutant {
        name: "slot_is_put_back_without_comparing",
        does: "A check-in puts a slot back although another thread may have changed the head since it was compared.",
        file: "pool/core/shard.rs",
        edits: &[Edit {
            within: "fn put_back",
            right: "self.swap(without.head(), above).ok()?;",
            wrong: "self.0.store(above.pack(), Ordering::Release);",
        }],
    },
    Mutant {
        name: "slot_from_another_shard_keeps_its_link",
        does: "A check-in puts a slot back although the slot has been on another shard since it was taken.",
        file: "pool/core/nearby.rs",
        edits: &[Edit { within: "fn put_back", right: "self.slot().link() == note.link.get()", wrong: "true" }],
    },
    Mutant {
        name: "another_slot_is_put_back_as_the_noted_one",
        does: "A check-in puts back any slot that has the link of the noted slot.",
        file: "pool/core/nearby.rs",
        edits: &[Edit { within: "fn put_back", right: "note.slot.get() == self.slot_pointer().cast()", wrong: "true" }],
    },
    Mutant {
        name: "note_keeps_the_head_that_a_hit_left_on_another_shard",
        does: "A thread that notes another shard keeps the head that it noted when it took a slot from the previous shard.",
        file: "pool/core/nearby.rs",
        edits: &[Edit { within: "fn note_own_shard", right: "note.without.set(PastHead::OF_NO_SHARD);", wrong: "" }],
    },
    Mutant {
        name: "note_keeps_the_heads_of_another_shard",
        does: "A thread that notes another shard keeps the heads that it noted of the previous shard.",
        file: "pool/core/nearby.rs",
        edits: &[
            Edit { within: "fn note_own_shard", right: "note.with.set(PastHead::OF_NO_SHARD);", wrong: "" },
            Edit { within: "fn note_own_shard", right: "note.without.set(PastHead::OF_NO_SHARD);", wrong: "" },
        ],
    },
    Mutant {
        name: "hit_is_counted_before_the_slot_is_owned",
        does: "A hit is counted on the top of the stack before the slot is taken.",
        file: "pool/core/acquire.rs",
        edits: &[
            Edit {
                within: "fn try_hit",
                right: "self.pop_nearby()?",
                wrong: "
                    let shard = self.nearby_shard()?;
                    let counted = shard.guessed_slots(&self.slab).next().is_some_and(|top| top.tally().count_hit());
                    let slot = self.pop_nearby()?;
                    if counted {
                        Held::new(self, slot).begin_timed_use();
                    }
                    slot
                ",
            },
            Edit { within: "fn try_hit", right: "E::METERED && slot.tally().count_hit()", wrong: "false" },
        ],
    },
    Mutant {
        name: "timed_use_ends_after_the_return",
        does: "A check-in notes the end of a timed use when others may already use the connection.",
        file: "pool/core/lease.rs",
        edits: &[
            Edit { within: "fn check_in(", right: "held.slot().tally().is_timed()", wrong: "false" },
            Edit {
                within: "fn check_in(",
                right: "self.check_in_plainly(shard);",
                wrong: "
                    self.check_in_plainly(shard);
                    if held.slot().tally().is_timed() {
                        held.end_timed_use();
                    }
                ",
            },
        ],
    },
    Mutant {
        name: "link_is_kept_at_another_height",
        does: "A slot keeps its link if the link names the slot below, although the height differs.",
        file: "pool/core/slab.rs",
        edits: &[Edit {
            within: "fn set_link",
            right: "self.link.load(Ordering::Relaxed) == link.pack()",
            wrong: "Link::unpack(self.link.load(Ordering::Relaxed)).next == link.next",
        }],
    },
    Mutant {
        name: "generation_is_read_before_the_head",
        does: "A check-in checks its connection's generation before it reads the head that it swaps.",
        file: "pool/core/shard.rs",
        edits: &[
            Edit {
                within: "fn push",
                right: "unsafe { self.push_onto(head, height, slot, &is_current) }",
                wrong: "
                    let early = is_current();
                    let head = self.load();
                    let height = head.top.map_or(0, |top| unsafe { (*slab).slot(top) }.link().depth);
                    unsafe { self.push_onto(head, height, slot, || early) }
                ",
            },
            Edit {
                within: "fn try_push",
                right: "unsafe { self.push_onto(head, height, slot, is_current) }",
                wrong: "
                    let early = is_current();
                    let head = self.load();
                    let height = head.top.map_or(0, |top| unsafe { (*slab).slot(top) }.link().depth);
                    unsafe { self.push_onto(head, height, slot, || early) }
                ",
            },
        ],
    },
    Mutant {
        name: "push_ignores_waiters",
        does: "A check-in pushes onto a stack whose flag says that a check-out waits.",
        file: "pool/core/shard.rs",
        edits: &[Edit { within: "fn push_onto", right: "head.waiting", wrong: "false" }],
    },
    Mutant {
        name: "push_ignores_the_generation",
        does: "A check-in pushes a stale connection.",
        file: "pool/core/shard.rs",
        edits: &[Edit { within: "fn push_onto", right: "!is_current()", wrong: "false" }],
    },
    Mutant {
        name: "push_without_comparing",
        does: "A check-in writes the head although another thread may have changed it since it was read.",
        file: "pool/core/shard.rs",
        edits: &[Edit {
            within: "fn push_onto",
            right: "self.swap(head, above).map_err(Obstacle::Again)",
            wrong: "self.0.store(above.pack(), Ordering::Release); Ok(())",
        }],
    },
    Mutant {
        name: "empty_detach_keeps_the_head",
        does: "A clear does not change the head of an empty stack, so a push that has read it succeeds.",
        file: "pool/core/shard.rs",
        edits: &[Edit {
            within: "fn detach",
            right: "self.swap(head, Head { top: None, ..head.next() })",
            wrong: "
                if head.top.is_none() {
                    return None;
                }
                self.swap(head, Head { top: None, ..head.next() })
            ",
        }],
    },
    Mutant {
        name: "detach_in_two_steps",
        does: "A clear reads the head and then writes it, and loses changes between the two.",
        file: "pool/core/shard.rs",
        edits: &[Edit {
            within: "fn detach",
            right: "self.swap(head, Head { top: None, ..head.next() })",
            wrong: "
                self.0.store(Head { top: None, ..head.next() }.pack(), Ordering::Release);
                return head.top
            ",
        }],
    },
    Mutant {
        name: "search_leaves_out_a_shard",
        does: "A check-out does not search the last shard.",
        file: "pool/core/acquire.rs",
        edits: &[Edit { within: "fn take_any", right: "self.shards.len()", wrong: "self.shards.len() - 1" }],
    },
    Mutant {
        name: "flags_leave_out_a_shard",
        does: "The first waiter does not raise the flag of the last shard.",
        file: "pool/core/acquire.rs",
        edits: &[Edit {
            within: "fn look_for_the_first",
            right: "self.shards.iter()",
            wrong: "{ let mut all = self.shards.iter(); all.next_back(); all }",
        }],
    },
    Mutant {
        name: "flag_is_raised_over_connections",
        does: "The first waiter raises the flag of a shard that has connections, and takes none.",
        file: "pool/core/shard.rs",
        edits: &[Edit {
            within: "fn pop_or_flag",
            right: "head.top.map(|top| slab.slot(top))",
            wrong: "None::<&Slot<C>>",
        }],
    },
    Mutant {
        name: "detach_leaves_a_shard",
        does: "A clear or a close does not empty the last shard.",
        file: "pool/core/phases.rs",
        edits: &[Edit {
            within: "fn detach_all",
            right: "self.shards.iter()",
            wrong: "{ let mut all = self.shards.iter(); all.next_back(); all }",
        }],
    },
    Mutant {
        name: "settle_leaves_a_shard",
        does: "The last waiter to leave does not lower the flag of the last shard.",
        file: "pool/core/core.rs",
        edits: &[Edit {
            within: "fn lower_flags",
            right: "self.shards.iter()",
            wrong: "{ let mut all = self.shards.iter(); all.next_back(); all }",
        }],
    },
    Mutant {
        name: "reap_leaves_a_shard",
        does: "Maintenance does not search the last shard.",
        file: "pool/core/maintenance.rs",
        edits: &[Edit {
            within: "fn reap",
            right: "self.shards.iter()",
            wrong: "{ let mut all = self.shards.iter(); all.next_back(); all }",
        }],
    },
];
