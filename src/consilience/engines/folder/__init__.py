"""Folder engine: asks and replies are sealed files in a shared or synchronised folder.

No party opens a port. The coordinator and each site run in processes of their own, with their own
home, policy and key; all they have in common is a directory::

    <folder>/runs/<run id>/
      asks/<round>-<attempt>-<site>.msg       written by the coordinator, read by that site
      replies/<round>-<attempt>-<site>.msg    written by that site, read by the coordinator

The protocol, in eight rules:

1. **A place names one question.** Run, round, attempt and site are the *place*; each place has at
   most one ask and one reply. Nobody ever takes run, round or site from the content of a file:
   the reader knows which place it looks at and accepts only an envelope signed and sealed for that
   place, in that direction, by the party that it trusts there (`wire.signing`). A reply also names
   the digest of the sealed ask that it answers. So files that are moved, copied to other names,
   replayed from another run or swapped between sites are not messages.
2. **Whole or absent.** Files appear by an atomic rename and carry a checksum. A file that is
   damaged, incomplete (a synchronised folder may copy slowly) or signed by somebody else is set
   aside with a note, and looked at again when it changes. Who wrote it writes it again.
3. **Both ends are idempotent.** Signatures are deterministic and a site repeats what it said, so an
   ask that is put again gives the same reply, byte for byte. Neither end keeps anything in memory
   that it needs after a restart: the coordinator has its journal, the site its records, and what is
   missing in the folder is written again.
4. **A reply leaves after it is recorded.** `Site.answer` writes state and reply in one rename; only
   then is the reply file written. A crash in between loses nothing and computes nothing twice.
   Where the site holds its replies, the file is not written before the steward has released it; the
   coordinator sees a site that has not answered yet.
5. **A run belongs to the coordinator that began it.** A site that trusts several coordinators notes
   whose ask came first and hears nobody else on that run.
6. **What is lost comes again.** What a party wrote and finds altered or missing it writes again, at
   first at once. What is there and has no effect (an ask without reply, the last reply of a run
   that does not go on) is written again after a while, because a synchroniser may have lost it;
   the waits double, so that a slow copy can end (``mailbox.py``). Copies that synchronisers make
   beside a message are named once and never read: the message itself comes again.
7. **Keys come from files that people wrote.** A party may have several, with last days
   (`wire.keys`); nothing in the folder adds one, takes one away, or moves a day.
8. **Silence ends.** A place without a valid reply within the deadline, counted from when this
   process sent the ask, counts as an absent site; the last fault that was seen is the reason.

Every message is sealed to its reader: who can read the folder sees places, sizes and times, and
heartbeats, but no ask and no reply. A site whose key no ask is sealed for puts an empty envelope of
its own in the reply's place, which tells the coordinator what key is missing in its list. A party
that can write to the folder can delete files and so delay a run, but not alter it, and no link in
it, in the place of a file or of a directory, leads a party elsewhere (`wire.files.Beneath`). When a
run has ended well its files are removed.

Both ends are one `Mailbox` (``mailbox.py``), which does not know what role it plays;
`FolderEngine` (``coordinator.py``) and `watch` (``site.py``) are the two uses of it.
"""

from __future__ import annotations

from consilience.engines.folder.coordinator import FolderEngine
from consilience.engines.folder.mailbox import Mailbox
from consilience.engines.folder.site import Watcher, watch
from consilience.engines.signed import Place

__all__ = ["FolderEngine", "Mailbox", "Place", "Watcher", "watch"]
