------------------------------ MODULE Protocol ------------------------------
(***************************************************************************)
(* How a change of an object travels through a row, a bucket and a         *)
(* changelog.  There is one object, and a few processes that work on it.   *)
(* docs/protocol.md has the rules in words, and what TLC has found.        *)
(*                                                                         *)
(* A process may stop between any two of its steps for ever: a crash looks *)
(* like that.  It may find its lease held or ended at any look.  A request *)
(* arrives at any later time or never, and a swap may be sent twice.       *)
(* Tokens are names: "A" is the token of the change of process A, and also *)
(* the revision of the blob that A uploads.  "old" is what was there first.*)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
    Guards,                     \* the rules that are followed; all: our protocol; none: the published one
    Large, Single,              \* writers of a blob: by an upload session, and by a single request
    Small, Delete,              \* writers of an inline object, and deletions
    IfRevision, Revision,       \* writers with the condition that this revision is there
    IfAbsent,                   \* writers with the condition that nothing is there
    Complete,                   \* those who complete the open upload
    Recover,                    \* recoveries: each takes any entry at any moment
    Read, Touch,                \* readers, and those who extend the deadline of what they read
    Ask,                        \* those who ask what became of the change of A
    Audit,                      \* those who delete what the row does not name, without a look at the log
    Shows,                      \* what the row holds first: "blob", "inline" or "nothing"
    Begun,                      \* the open upload: "none", "begun", or "won" (by somebody who is dead)
    LateSwap,                   \* the swap of what is there first may arrive once more
    Mortal,                     \* what is there first, and each new blob, has a deadline that may pass
    Ages,                       \* two days may pass
    Twice,                      \* a single request to upload may arrive twice
    Echoes,                     \* the first record of a change may arrive once more
    Drains                      \* somebody recovers what is left; if not, entries may stay

VARIABLES
    row,                        \* the object's row
    blobs,                      \* the bucket: pairs of a name and a deadline
    lapsed,                     \* the blobs that the bucket's lifecycle rule deleted
    sessions,                   \* the uploads that can still be finalised
    log,                        \* the changelog: a set of entries
    net,                        \* the requests under way: pairs of a request and the number of its copy
    now,                        \* the deadlines up to this one have passed
    aged,                       \* two days have passed
    effects,                    \* ghost: the tokens of the writes in the order in which they took effect
    procs,                      \* where each process is
    wrong,                      \* ghost: the promises that were broken
    did                         \* ghost: the last step in words; no part of the VIEW

bucket == <<blobs, lapsed, sessions>>
clock == <<now, aged>>
vars == <<row, blobs, lapsed, sessions, log, net, now, aged, effects, procs, wrong, did>>
View == <<row, blobs, lapsed, sessions, log, net, now, aged, effects, procs, wrong>>

On(guard) == guard \in Guards

None == "nothing"
Open == "M"                     \* the token of the open upload
Writers == Large \cup Single \cup Small \cup Delete
Conditional == IfRevision \cup IfAbsent
Uploaders == Large \cup Single
Processes == Writers \cup Complete \cup Recover \cup Read \cup Touch \cup Ask \cup Audit

TokenOf(p) == IF p \in Complete THEN Open ELSE p
UploadOf(p) == IF p \in Large THEN "session" ELSE IF p \in Single THEN "single" ELSE "none"
WritesOf(p) == IF p \in Uploaders THEN "blob" ELSE IF p \in Small THEN "inline" ELSE "nothing"
Wanted(p) == IF p \in IfRevision THEN Revision ELSE None
Lives == IF Mortal THEN 1 ELSE 0  \* the deadline of a new blob; 0: it lives for ever; 2: what a touch sets

Expired(until, time) == 0 < until /\ until <= time
Range(sequence) == {sequence[i] : i \in DOMAIN sequence}

Entry(token, upload, old) ==
    [token |-> token, upload |-> upload, old |-> old,
     waits |-> FALSE,           \* it is left until the late-upload grace is over
     assembling |-> FALSE,      \* an open upload that may be completed
     claimed |-> FALSE,         \* somebody has claimed it to complete it
     over |-> FALSE,            \* ... two days ago
     tries |-> 0]               \* ... so often
NoEntry == Entry(None, "none", None)

Idle ==
    [pc |-> "start",
     old |-> None,              \* a writer: the tombstone that it read; a reader, a touch: what it saw
     gone |-> {},               \* the blobs that it is going to delete
     floor |-> 0,               \* how many writes had taken effect when it began
     answer |-> "",             \* what its caller was told: ok, no, false (the condition), over, unknown, again
     again |-> FALSE,           \* it has sent its request a second time
     late |-> FALSE,            \* its upload may arrive late
     aged |-> FALSE,            \* its change is too old: marks of its age may be gone
     lapsed |-> FALSE,          \* its lease has certainly ended
     bare |-> FALSE,            \* with a condition: it needs no entry, because no tombstone is in the way
     entry |-> NoEntry,         \* recovery, a completer: what it works on
     before |-> NoEntry]        \* a completer: what its entry was before its claim
Ended(q) == [Idle EXCEPT !.pc = "end", !.answer = q.answer, !.aged = q.aged]

Drops == On("refused_in_swap") /\ On("won_in_swap")  \* requests that could only conflict, see IsDead
First == IF Begun = "won" THEN Open ELSE IF Shows = "nothing" THEN None ELSE "old"
Request(kind, token, expected, writes, only, at) ==
    [kind |-> kind, token |-> token, expected |-> expected, writes |-> writes, only |-> only, at |-> at]

Init ==
    LET blob == Shows = "blob"
        deadline == IF Mortal /\ First # None THEN 1 ELSE 0
    IN  /\ row = [target |-> IF blob THEN First ELSE None, inline |-> IF blob THEN None ELSE First,
                  until |-> deadline,
                  marks |-> IF blob THEN {<<"won", First>>} ELSE {},
                  fresh |-> {},       \* the marks that are too young to be collected
                  reserved |-> {}]    \* the tokens for which the state of the row is reserved
        /\ blobs = IF blob THEN {<<First, deadline>>} ELSE {}
        /\ lapsed = {}
        /\ sessions = IF Begun = "begun" THEN {Open} ELSE {}
        /\ log = IF Begun = "none" THEN {}
                 ELSE {[Entry(Open, "session", None) EXCEPT !.assembling = TRUE, !.claimed = Begun = "won"]}
        /\ net = IF LateSwap /\ ~Drops THEN {<<Request("swap", First, First, "blob", "", 0), 1>>} ELSE {}
        /\ now = 0
        /\ aged = FALSE
        /\ effects = <<First>>
        /\ procs = [p \in Processes |-> Idle]
        /\ wrong = {}
        /\ did = <<"first">>

-----------------------------------------------------------------------------
(* The row.  Each of these operations is one atomic step. *)

Present == IF ~On("presence") /\ Expired(row.until, now) THEN None ELSE row.target
IsShown(token) == token # None /\ token \in {Present, row.inline}
HasMark(verdict, token) == <<verdict, token>> \in row.marks
IsMarked(token) ==
    \/ On("refused_in_swap") /\ HasMark("refused", token)
    \/ On("won_in_swap") /\ HasMark("won", token)
Marked(r, verdict, token) ==
    [r EXCEPT !.marks = @ \cup {<<verdict, token>>}, !.fresh = IF aged THEN @ \cup {<<verdict, token>>} ELSE @]
Settled(token) == IF IsShown(token) THEN row ELSE Marked(row, "refused", token)

\* What a condition says of a row.  An object that has expired counts as gone, except to `if_revision` in the row.
Holds(p, r, mortal) == Wanted(p) = (IF mortal /\ Expired(r.until, now) THEN None
                                    ELSE IF r.target # None THEN r.target ELSE r.inline)
Satisfied(p) == Holds(p, row, TRUE)

Written(token, what) ==
    [row EXCEPT !.target = IF what = "blob" THEN token ELSE None,
                !.inline = IF what = "inline" THEN token ELSE None,
                !.until = IF what = "blob" THEN Lives ELSE 0,
                !.reserved = IF On("write_ends_reservation") THEN {} ELSE @]
\* The promises that a write breaks.
WriteWrongs(token, what) ==
    LET after == Written(token, what)
        changes == <<after.target, after.inline>> # <<row.target, row.inline>>
    IN  (IF token = Open /\ token \in Range(effects) THEN {"LATE"} ELSE {})
        \cup (IF token \in Conditional /\ ~Holds(token, row, token \in IfAbsent) THEN {"BLIND"} ELSE {})
        \cup (IF token \in Writers /\ changes /\ procs[token].answer \in {"ok", "no", "false", "over"}
              THEN {"LATE"} ELSE {})

SwapConflicts(r) ==
    \/ Present \notin {None, r.expected}
    \/ r.only = "revision" /\ On("reserved_in_swap") /\ r.token \notin row.reserved
    \/ r.only = "absent" /\ On("absent_in_swap") /\ ~(row.target = None /\ row.inline = None)
          /\ ~Expired(row.until, r.at)

-----------------------------------------------------------------------------
(* What a step does to its process and to the network. *)

\* A request that could only conflict is dropped: whoever waits for it may time out with the same result.
IsDead(r) ==
    CASE r.kind = "record" -> FALSE
      [] r.kind = "upload" -> r.writes = "session" /\ r.token \notin sessions'
      [] OTHER -> {<<"won", r.token>>, <<"refused", r.token>>} \cap row'.marks # {}
UnderWay(n) == IF Drops THEN {m \in n : ~IsDead(m[1])} ELSE n
Copies(n, r) == Cardinality({m \in n : m[1] = r})
Plus(n, r) == n \cup {<<r, Copies(n, r) + 1>>}
Minus(n, r) == n \ {<<r, Copies(n, r)>>}
Send(r) == net' = UnderWay(Plus(net, r))

Exists(blob) == \E b \in blobs : b[1] = blob
Superseded(p) ==                \* somebody wrote without a condition since it began
    /\ p \notin Conditional
    /\ \E i \in procs[p].floor + 1 .. Len(effects') : effects'[i] \notin Conditional
\* The promises that an answer breaks.
AnswerWrongs(p, answer) ==
    LET took == TokenOf(p) \in Range(effects')
        isEmpty == row'.target = None /\ row'.inline = None
        explained == took \/ (p \in Writers /\ (Superseded(p) \/ (p \in Delete \ Conditional /\ isEmpty)))
    IN  (IF answer = "ok" /\ ~explained THEN {"FALSE-OK"} ELSE {})
        \cup (IF answer \in {"no", "false"} /\ took THEN {"FALSE-NO"} ELSE {})
        \cup (IF answer = "false" /\ Holds(p, row', TRUE) THEN {"FALSE-NO"} ELSE {})

\* `also`: the promises that the same step breaks in another way.
Move(p, q, also) == procs' = [procs EXCEPT ![p] = q] /\ wrong' = wrong \cup also
Tell(p, q, answer, also) == Move(p, [q EXCEPT !.answer = answer], also \cup AnswerWrongs(p, answer))
Goes(p, q) == Move(p, q, {})
Goto(p, pc) == Goes(p, [procs[p] EXCEPT !.pc = pc])
Answers(p, q, answer) == Tell(p, q, answer, {})
Does(p, words) == did' = <<p>> \o words
Nothing == UNCHANGED <<row, bucket, log, net, effects, clock>>
Settle(token) ==
    /\ row' = Settled(token)
    /\ UNCHANGED <<bucket, log, effects, clock>>
    /\ net' = UnderWay(net)
\* What is known of a blob before it is deleted.  Without its guard the row is only read.
Look(guard, token) == IF On(guard) THEN Settle(token) ELSE Nothing
LookWords(guard, token) ==
    <<IF On(guard) THEN "settles" ELSE "looks for", token, IF IsShown(token) THEN "live" ELSE "not live">>

-----------------------------------------------------------------------------
(* The clean-up: steps 5 and 6, of a writer, of a completer and of recovery. *)

AfterToken(q, e) ==             \* the step after the token of the change was settled, and its session cancelled
    [q EXCEPT !.pc = IF e.old # None THEN "old" ELSE IF q.gone # {} THEN "delete" ELSE "forget"]
AfterSettle(q, live, e) ==
    IF live \/ e.upload = "none" THEN AfterToken(q, e)
    ELSE IF e.upload = "session" /\ On("cancel_session") THEN [q EXCEPT !.gone = {e.token}, !.pc = "cancel"]
    ELSE AfterToken([q EXCEPT !.gone = {e.token}], e)

Deletes(p, gone, q) ==
    /\ blobs' = {b \in blobs : b[1] \notin gone}
    /\ UNCHANGED <<row, lapsed, sessions, log, net, effects, clock>>
    /\ Move(p, q, IF ~aged /\ \E b \in gone : ~HasMark("refused", b) THEN {"UNSETTLED"} ELSE {})

CleanUp(p, e, mayLandLate) ==
    LET q == procs[p]
        done == IF p \in Recover THEN Idle ELSE Ended(q)
    IN  \/ /\ q.pc = "settle"
           /\ Look("settle_before_delete", e.token)
           /\ Goes(p, AfterSettle(q, IsShown(e.token), e))
           /\ Does(p, LookWords("settle_before_delete", e.token))
        \/ /\ q.pc = "cancel"
           /\ sessions' = sessions \ {e.token}
           /\ UNCHANGED <<row, blobs, lapsed, log, effects, clock>>
           /\ net' = UnderWay(net)
           /\ Goes(p, AfterToken(q, e))
           /\ Does(p, <<"cancels the upload", e.token>>)
        \/ /\ q.pc = "old"
           /\ Look("settle_old_before_delete", e.old)
           /\ LET gone == IF IsShown(e.old) THEN q.gone ELSE q.gone \cup {e.old}
              IN  Goes(p, [q EXCEPT !.gone = gone, !.pc = IF gone = {} THEN "forget" ELSE "delete"])
           /\ Does(p, LookWords("settle_old_before_delete", e.old))
        \/ /\ q.pc = "delete"
           /\ Deletes(p, q.gone, [q EXCEPT !.pc = "forget"])
           /\ Does(p, <<"deletes", q.gone>>)
        \/ /\ q.pc = "forget"
           /\ UNCHANGED <<row, bucket, net, effects, clock>>
           /\ Goes(p, done)
           /\ IF On("late_cleanup") /\ mayLandLate /\ e.token \in q.gone /\ ~e.waits
              THEN /\ log' = IF e \in log THEN (log \ {e}) \cup {[e EXCEPT !.waits = TRUE]} ELSE log
                   /\ Does(p, <<"leaves", e.token, "to wait out the grace">>)
              ELSE /\ log' = {each \in log : each.token # e.token}
                   /\ Does(p, <<"forgets", e.token>>)

-----------------------------------------------------------------------------
(* Writers. *)

EntryOf(p) == Entry(p, UploadOf(p), procs[p].old)
Record(p, old) ==
    LET e == Entry(p, UploadOf(p), old)
    IN  /\ log' = log \cup {e}
        /\ IF Echoes THEN Send(Request("record", p, old, e.upload, "", 0)) ELSE net' = UnderWay(net)
Commit(p) == IF p \in IfRevision THEN "reserve" ELSE "swap"
After(p, q, live) == IF q.bare THEN Ended(q) ELSE AfterSettle(q, live, EntryOf(p))
OrEnd(q, pc) == IF q.bare THEN Ended(q) ELSE [q EXCEPT !.pc = pc]
SendUpload(p) ==
    /\ UNCHANGED <<row, bucket, log, effects, clock>>
    /\ Send(Request("upload", TokenOf(p), None, IF p \in Complete THEN "session" ELSE UploadOf(p), "", 0))
SendSwap(p) ==
    /\ UNCHANGED <<row, bucket, log, effects, clock>>
    /\ Send(Request("swap", TokenOf(p), procs[p].old, IF p \in Complete THEN "blob" ELSE WritesOf(p),
                    IF p \in IfRevision THEN "revision" ELSE IF p \in IfAbsent THEN "absent" ELSE "",
                    IF p \in IfAbsent THEN now ELSE 0))
SendInline(p) ==
    /\ UNCHANGED <<row, bucket, log, effects, clock>>
    /\ Send(Request("inline", p, None, WritesOf(p), "", 0))
IsYoung(p) == ~(On("age_bound") /\ procs[p].aged)

Begins(p) ==
    LET q == [procs[p] EXCEPT !.floor = Len(effects)]
        unrecorded == p \in Uploaders /\ ~On("record_before_finalise")
    IN  /\ procs[p].pc = "start"
        /\ IF p \in Conditional /\ ~Satisfied(p)
           THEN /\ Nothing
                /\ Answers(p, Ended(q), "false")
                /\ Does(p, <<"reads the row: told that its condition is false">>)
           ELSE IF p \notin Conditional \cup Uploaders
           THEN /\ SendInline(p)
                /\ Goes(p, [q EXCEPT !.pc = "once"])
                /\ Does(p, <<"sends its inline write">>)
           ELSE /\ UNCHANGED <<row, blobs, lapsed, effects, clock>>
                /\ sessions' = IF p \in Large THEN sessions \cup {p} ELSE sessions
                /\ IF p \in Uploaders
                   THEN /\ Goes(p, [q EXCEPT !.old = Present, !.pc = IF unrecorded THEN "unrecorded" ELSE "upload"])
                        /\ IF unrecorded THEN UNCHANGED <<log, net>> ELSE Record(p, Present)
                   ELSE /\ Goes(p, [q EXCEPT !.old = Present, !.pc = Commit(p), !.bare = Present = None])
                        /\ IF Present = None THEN UNCHANGED <<log, net>> ELSE Record(p, Present)
                /\ Does(p, <<"reads the row, tombstone:", Present>>)

Uploads(p) ==
    LET q == procs[p]
    IN  \/ /\ q.pc = "unrecorded"
           /\ SendUpload(p)
           /\ Goto(p, "record")
           /\ Does(p, <<"sends the end of its upload">>)
        \/ /\ q.pc = "record"
           /\ UNCHANGED <<row, bucket, effects, clock>>
           /\ Record(p, q.old)
           /\ Goto(p, "uploading")
           /\ Does(p, <<"records its change">>)
        \/ /\ q.pc = "upload"
           /\ On("held_before_finalise")
           /\ Nothing
           /\ Answers(p, Ended(q), "no")
           /\ Does(p, <<"its lease has ended before its upload: told no">>)
        \/ /\ q.pc = "upload"
           /\ ~(On("held_before_finalise") /\ q.lapsed)
           /\ SendUpload(p)
           /\ Goto(p, "uploading")
           /\ Does(p, <<"sends the end of its upload">>)
        \/ /\ q.pc = "uploading"
           /\ ~On("record_before_finalise") /\ Exists(p)
           /\ Nothing
           /\ Goto(p, Commit(p))
           /\ Does(p, <<"finds its upload done">>)
        \/ /\ q.pc = "uploading"
           /\ Nothing
           /\ Answers(p, [q EXCEPT !.pc = "settle", !.late = p \in Single], "no")
           /\ Does(p, <<"no answer to its upload: told no">>)

Inlines(p) ==                   \* an inline write that was sent, and what follows if a tombstone was in the way
    LET q == procs[p]
    IN  \/ /\ q.pc = "once"
           /\ ~On("inline_once") /\ ~q.again
           /\ SendInline(p)
           /\ Goes(p, [q EXCEPT !.again = TRUE])
           /\ Does(p, <<"sends its inline write again">>)
        \/ /\ q.pc = "once"
           /\ ~On("settle_unknown_inline")
           /\ Nothing
           /\ Answers(p, Ended(q), "over")
           /\ Does(p, <<"no answer: told over">>)
        \/ /\ q.pc = "once"
           /\ On("settle_unknown_inline")
           /\ Settle(p)
           /\ IF IsShown(p) THEN Answers(p, Ended(q), "ok")
              ELSE IF p \in Delete THEN Goto(p, "absent")
              ELSE Answers(p, Ended(q), "over")
           /\ Does(p, <<"no answer, settles its token:", IF IsShown(p) THEN "live" ELSE "refused">>)
        \/ /\ q.pc = "absent"
           /\ Nothing
           /\ Answers(p, Ended(q), IF row.target = None /\ row.inline = None THEN "ok" ELSE "over")
           /\ Does(p, <<"reads the row, and tells its caller">>)
        \/ /\ q.pc = "change"
           /\ UNCHANGED <<row, bucket, effects, clock>>
           /\ Record(p, Present)
           /\ Goes(p, [q EXCEPT !.old = Present, !.pc = "swap"])
           /\ Does(p, <<"reads the row, records its change, tombstone:", Present>>)

Swaps(p) ==
    LET q == procs[p]
    IN  \/ /\ q.pc = "reserve"
           /\ UNCHANGED <<row, bucket, log, effects, clock>>
           /\ Send(Request("reserve", p, Revision, "", "", 0))
           /\ Goto(p, "reserving")
           /\ Does(p, <<"reserves", Revision>>)
        \/ /\ q.pc = "reserving"
           /\ Nothing
           /\ Goto(p, "judge")
           /\ Does(p, <<"no answer to its reservation">>)
        \/ /\ q.pc = "swap"
           /\ On("held_before_swap") /\ ~q.bare
           /\ Nothing
           /\ Answers(p, Ended(q), "no")
           /\ Does(p, <<"its lease has ended before its swap: told no">>)
        \/ /\ q.pc = "swap"
           /\ ~IsYoung(p)
           /\ Nothing
           /\ Answers(p, OrEnd(q, "settle"), "no")
           /\ Does(p, <<"is too old to swap: told no">>)
        \/ /\ q.pc = "swap"
           /\ IsYoung(p)
           /\ SendSwap(p)
           /\ Goto(p, "wait")
           /\ Does(p, <<"sends its swap">>)
        \/ /\ q.pc = "wait"
           /\ ~q.again /\ IsYoung(p)
           /\ SendSwap(p)
           /\ Goes(p, [q EXCEPT !.again = TRUE])
           /\ Does(p, <<"sends its swap again">>)
        \/ /\ q.pc = "wait"
           /\ Nothing
           /\ Goto(p, "judge")
           /\ Does(p, <<"no answer to its swap">>)

Judges(p) ==                    \* step 4 of a swap that was not told ok
    LET q == procs[p]
        early == /\ q.pc = "judge" /\ p \in Conditional /\ ~On("false_after_refusal")
                 /\ ~Satisfied(p) /\ ~IsShown(p)
        won == HasMark("won", p) \/ IsShown(p)
        superseded == /\ row.target \notin {None, q.old}
                      /\ ~(On("condition_in_answer") /\ p \in Conditional)
                      /\ ~(On("condition_shown") /\ row.target \in Conditional)
        refused == IF On("young_marks_answer") /\ q.aged THEN "over"
                   ELSE IF p \in Conditional /\ ~Satisfied(p) THEN "false" ELSE "no"
    IN  /\ q.pc \in {"judge", "ask"}
        /\ \/ /\ Ask # {}
              /\ Nothing
              /\ Answers(p, Ended(q), "unknown")
              /\ Does(p, <<"cannot find out in time: told unknown">>)
           \/ /\ early
              /\ Nothing
              /\ Answers(p, OrEnd(q, "settle"), "false")
              /\ Does(p, <<"reads the row: told that its condition is false">>)
           \/ /\ ~early /\ q.pc = "judge" /\ On("settle_before_answer")
              /\ Settle(p)
              /\ IF IsShown(p) THEN Answers(p, After(p, q, TRUE), "ok")
                 ELSE IF ~On("row_before_answer") THEN Answers(p, After(p, q, FALSE), "no")
                 ELSE Goto(p, "ask")
              /\ Does(p, <<"settles its token:", IF IsShown(p) THEN "live" ELSE "refused">>)
           \/ /\ ~early /\ (q.pc = "ask" \/ ~On("settle_before_answer"))
              /\ Nothing
              /\ Answers(p, IF On("settle_before_answer") THEN After(p, q, FALSE) ELSE OrEnd(q, "settle"),
                         IF won \/ superseded THEN "ok" ELSE refused)
              /\ Does(p, <<"reads the row,", IF won THEN "won: told ok"
                                             ELSE IF superseded THEN "superseded: told ok"
                                             ELSE "neither won nor superseded: told", IF won \/ superseded THEN "" ELSE refused>>)

Writer(p) ==
    \/ Begins(p)
    \/ Uploads(p)
    \/ Inlines(p)
    \/ Swaps(p)
    \/ Judges(p)
    \/ CleanUp(p, EntryOf(p), procs[p].late)

-----------------------------------------------------------------------------
(* Completers of the open upload.  To try again is the same as another one beside it. *)

HasWon == HasMark("won", Open) \/ IsShown(Open)
RefusedAnswer == IF On("young_marks_answer") /\ aged THEN "unknown" ELSE "no"

Completer(p) ==
    LET q == procs[p]
        e == q.entry
        mine == [e EXCEPT !.old = q.old, !.claimed = TRUE, !.tries = IF On("count_in_claim") THEN @ + 1 ELSE @]
        plain == [e EXCEPT !.assembling = FALSE, !.tries = 0]
    IN  \/ /\ q.pc = "start"
           /\ Nothing
           /\ Goes(p, [q EXCEPT !.pc = "row",
                                !.entry = IF \E x \in log : x.token = Open
                                          THEN CHOOSE x \in log : x.token = Open ELSE NoEntry])
           /\ Does(p, <<"reads the log">>)
        \/ /\ q.pc = "row"
           /\ Nothing
           /\ IF HasWon THEN /\ Answers(p, IF e = NoEntry THEN Ended(q) ELSE [q EXCEPT !.pc = "seal"], "ok")
                             /\ Does(p, <<"reads the row, it has won: told ok">>)
              ELSE IF HasMark("refused", Open) THEN /\ Answers(p, Ended(q), RefusedAnswer)
                                                    /\ Does(p, <<"reads the row, it was refused: told", RefusedAnswer>>)
              ELSE IF e = NoEntry \/ ~e.assembling \/ (On("first_claim_young") /\ e.over)
              THEN /\ Answers(p, Ended(q), "unknown")
                   /\ Does(p, <<"reads the row, no mark: told unknown">>)
              ELSE /\ Goes(p, [q EXCEPT !.pc = "claim", !.old = Present])
                   /\ Does(p, <<"reads the row, tombstone:", Present>>)
        \/ /\ q.pc = "claim"
           /\ UNCHANGED <<row, bucket, net, effects, clock>>
           /\ IF e \in log
              THEN /\ log' = (log \ {e}) \cup {mine}
                   /\ Goes(p, [q EXCEPT !.pc = IF Exists(Open) THEN "swap" ELSE "upload", !.entry = mine, !.before = e])
                   /\ Does(p, <<"claims the upload over", q.old>>)
              ELSE /\ UNCHANGED log
                   /\ Answers(p, Ended(q), "again")
                   /\ Does(p, <<"claims the upload in vain: told to try again">>)
        \/ /\ q.pc = "upload"
           /\ SendUpload(p)
           /\ Goto(p, "uploading")
           /\ Does(p, <<"completes the upload">>)
        \/ /\ q.pc = "upload"
           /\ Nothing
           /\ Answers(p, [q EXCEPT !.pc = "give back"], "again")
           /\ Does(p, <<"is refused by the service: told to try again">>)
        \/ /\ q.pc = "give back"
           /\ UNCHANGED <<row, bucket, net, effects, clock>>
           /\ log' = IF e \in log THEN (log \ {e}) \cup {[q.before EXCEPT !.tries = e.tries]} ELSE log
           /\ Goes(p, Ended(q))
           /\ Does(p, <<"gives its claim back">>)
        \/ /\ q.pc = "uploading" /\ Exists(Open)
           /\ Nothing
           /\ Goto(p, "swap")
           /\ Does(p, <<"finds the upload done">>)
        \/ /\ q.pc = "uploading"
           /\ Nothing
           /\ Answers(p, Ended(q), "again")
           /\ Does(p, <<"no answer to the upload: told to try again">>)
        \/ /\ q.pc = "swap" /\ ~IsYoung(p)
           /\ Nothing
           /\ Answers(p, Ended(q), "again")
           /\ Does(p, <<"is too old to swap: told to try again">>)
        \/ /\ q.pc = "swap" /\ IsYoung(p)
           /\ SendSwap(p)
           /\ Goto(p, "wait")
           /\ Does(p, <<"sends its swap">>)
        \/ /\ q.pc = "wait" /\ ~q.again /\ IsYoung(p)
           /\ SendSwap(p)
           /\ Goes(p, [q EXCEPT !.again = TRUE])
           /\ Does(p, <<"sends its swap again">>)
        \/ /\ q.pc = "wait"
           /\ Nothing
           /\ Goto(p, "reread")
           /\ Does(p, <<"no answer to its swap">>)
        \/ /\ q.pc = "reread"
           /\ Nothing
           /\ IF HasWon THEN Answers(p, [q EXCEPT !.pc = "seal"], "ok")
              ELSE IF HasMark("refused", Open) THEN Answers(p, Ended(q), RefusedAnswer)
              ELSE Answers(p, Ended(q), "again")
           /\ Does(p, <<"reads the row again:", IF HasWon THEN "won" ELSE IF HasMark("refused", Open) THEN "refused" ELSE "neither">>)
        \/ /\ q.pc = "seal"
           /\ UNCHANGED <<row, bucket, net, effects, clock>>
           /\ IF e \in log
              THEN /\ log' = (log \ {e}) \cup {plain}
                   /\ Goes(p, [q EXCEPT !.pc = "settle", !.entry = plain])
                   /\ Does(p, <<"seals the entry">>)
              ELSE /\ UNCHANGED log
                   /\ Goes(p, Ended(q))
                   /\ Does(p, <<"leaves the rest to others">>)
        \/ CleanUp(p, e, FALSE)

-----------------------------------------------------------------------------
(* Recovery takes any entry at any moment, and may stop anywhere. *)

Takes(p, e) ==
    LET q == procs[p]
        plain == [e EXCEPT !.assembling = FALSE, !.tries = 0]
        held == IF On("seal_before_refusal") THEN plain ELSE e
        \* When the grace has passed, the upload has arrived or never will, and its writer's lease has ended.
        arrived == IF e.waits THEN {m \in net : ~(m[1].kind = "upload" /\ m[1].token = e.token)} ELSE net
        lapses == e.waits /\ On("held_before_finalise") /\ e.token \in Writers /\ procs[e.token].pc = "upload"
        taken == [procs EXCEPT ![p] = AfterSettle([q EXCEPT !.entry = e], IsShown(e.token), e)]
    IN  /\ q.pc = "start"
        /\ IF e.assembling
           THEN /\ UNCHANGED <<row, bucket, net, effects, clock>>
                /\ log' = (log \ {e}) \cup {held}
                /\ Goes(p, [q EXCEPT !.pc = "settle", !.entry = held])
                /\ Does(p, <<"gives up", e.token>>)
           ELSE /\ UNCHANGED <<bucket, log, effects, clock>>
                /\ row' = IF On("settle_before_delete") THEN Settled(e.token) ELSE row
                /\ net' = UnderWay(arrived)
                /\ procs' = IF lapses THEN [taken EXCEPT ![e.token].lapsed = TRUE] ELSE taken
                /\ UNCHANGED wrong
                /\ Does(p, <<IF e.waits THEN "claims after the grace," ELSE "claims,">>
                           \o LookWords("settle_before_delete", e.token))

Recovery(p) ==
    \/ \E e \in log : Takes(p, e)
    \/ CleanUp(p, procs[p].entry, TRUE)
    \/ /\ procs[p].pc # "start"
       /\ Nothing
       /\ Goes(p, Idle)
       /\ Does(p, <<"stops">>)

-----------------------------------------------------------------------------
(* Readers, touches, those who ask, and an audit. *)

Found(p, what, floor) ==        \* it was current at some moment since the reader began
    IF \E i \in floor + 1 .. Len(effects) : effects[i] = what THEN {} ELSE {"STALE-READ"}

Reader(p) ==
    LET q == procs[p]
        floor == IF q.pc = "start" THEN Len(effects) - 1 ELSE q.floor
    IN  /\ Nothing
        /\ \/ /\ q.pc = "blob" /\ Exists(q.old)
              /\ Move(p, Ended(q), Found(p, q.old, floor))
              /\ Does(p, <<"opens", q.old>>)
           \/ /\ q.pc = "blob" /\ ~Exists(q.old)
              /\ IF On("reread") THEN Goto(p, "again") ELSE Move(p, Ended(q), {"FALSE-LOSS"})
              /\ Does(p, <<"does not find", q.old>>)
           \/ /\ q.pc \in {"start", "again"}
              /\ IF Expired(row.until, now) \/ (row.target = None /\ row.inline = None) THEN Goes(p, Ended(q))
                 ELSE IF row.inline # None THEN Move(p, Ended(q), Found(p, row.inline, floor))
                 ELSE IF q.pc = "again" /\ row.target = q.old THEN Move(p, Ended(q), {"FALSE-LOSS"})
                 ELSE Goes(p, [q EXCEPT !.pc = "blob", !.old = row.target, !.floor = floor])
              /\ Does(p, <<"reads the row:", row.target, row.inline>>)

Toucher(p) ==
    LET q == procs[p]
        begin == IF On("touch_blob_first") THEN "blob" ELSE "row"
        next == IF q.pc = begin THEN [q EXCEPT !.pc = IF begin = "blob" THEN "row" ELSE "blob"] ELSE Ended(q)
    IN  \/ /\ q.pc = "start" /\ row.target # None /\ row.until = 1 /\ ~Expired(row.until, now)
           /\ Nothing
           /\ Goes(p, [q EXCEPT !.pc = begin, !.old = row.target])
           /\ Does(p, <<"reads the row:", row.target>>)
        \/ /\ q.pc = "blob"
           /\ UNCHANGED <<row, lapsed, sessions, log, net, effects, clock>>
           /\ blobs' = {<<b[1], IF b[1] = q.old THEN 2 ELSE b[2]>> : b \in blobs}
           /\ Goes(p, IF Exists(q.old) THEN next ELSE Ended(q))
           /\ Does(p, <<"extends the blob, if it is there:", q.old>>)
        \/ /\ q.pc = "row" /\ (~On("touch_if_shown") \/ row.target = q.old)
           /\ UNCHANGED <<bucket, log, net, effects, clock>>
           /\ row' = [row EXCEPT !.target = q.old, !.inline = None, !.until = 2]
           /\ Goes(p, next)
           /\ Does(p, <<"extends the row:", q.old>>)
        \/ /\ q.pc = "row" /\ On("touch_if_shown") /\ row.target # q.old
           /\ Nothing
           /\ Goes(p, Ended(q))
           /\ Does(p, <<"finds another row">>)

Asked == "A"
Asker(p) ==
    LET q == procs[p]
        took == Asked \in Range(effects)
        isRefused == HasMark("refused", Asked) /\ ~(On("young_marks_outcome") /\ procs[Asked].aged)
    IN  /\ Nothing
        /\ \/ /\ q.pc = "start" /\ procs[Asked].answer = "unknown"
              /\ Goto(p, "row")
              /\ Does(p, <<"reads the log">>)
           \/ /\ q.pc = "row"
              /\ IF Asked \in {row.target, row.inline} \/ HasMark("won", Asked)
                 THEN /\ Move(p, Ended(q), IF took THEN {} ELSE {"FALSE-OK"})
                      /\ Does(p, <<"reads the row: told that A took effect">>)
                 ELSE IF isRefused
                 THEN /\ procs' = [procs EXCEPT ![p] = Ended(q), ![Asked].answer = "no"]
                      /\ wrong' = wrong \cup (IF took THEN {"FALSE-NO"} ELSE {})
                      /\ Does(p, <<"reads the row: told that A had no effect">>)
                 ELSE /\ Goes(p, Ended(q))
                      /\ Does(p, <<"reads the row: told nothing">>)

Auditor(p) ==
    LET q == procs[p]
        without(b) == IF q.gone = {b} THEN Ended(q) ELSE [q EXCEPT !.gone = @ \ {b}, !.old = None, !.pc = "settle"]
    IN  \/ /\ q.pc = "start"
           /\ Nothing
           /\ Goes(p, [q EXCEPT !.pc = "row", !.gone = {b[1] : b \in blobs}])
           /\ Does(p, <<"lists the blobs">>)
        \/ /\ q.pc = "row"
           /\ Nothing
           /\ LET orphans == q.gone \ {row.target}
              IN  Goes(p, IF orphans = {} THEN Ended(q) ELSE [q EXCEPT !.pc = "settle", !.gone = orphans])
           /\ Does(p, <<"reads the row:", row.target>>)
        \/ \E b \in q.gone :
           /\ q.pc = "settle"
           /\ Look("settle_before_delete", b)
           /\ Goes(p, IF IsShown(b) THEN without(b) ELSE [q EXCEPT !.pc = "delete", !.old = b])
           /\ Does(p, LookWords("settle_before_delete", b))
        \/ /\ q.pc = "delete"
           /\ Deletes(p, {q.old}, without(q.old))
           /\ Does(p, <<"deletes", q.old>>)

-----------------------------------------------------------------------------
(* The network lets any request arrive.  Its sender is told, or is not. *)

HearsWriter(p, ok, also) ==
    LET q == procs[p]
    IN  CASE q.pc = "once" /\ ok -> Tell(p, Ended(q), "ok", also)
          [] q.pc = "once" -> Move(p, [q EXCEPT !.pc = "change"], also)
          [] q.pc = "uploading" /\ ok -> Move(p, [q EXCEPT !.pc = Commit(p)], also)
          [] q.pc = "uploading" -> Tell(p, [q EXCEPT !.pc = "settle"], "no", also)
          [] q.pc = "reserving" /\ ok -> Move(p, [q EXCEPT !.pc = "swap"], also)
          [] q.pc = "wait" /\ ok -> Tell(p, IF q.bare THEN Ended(q) ELSE AfterSettle(q, TRUE, EntryOf(p)), "ok", also)
          [] OTHER -> IF On("settle_before_answer") \/ On("row_before_answer") THEN Move(p, [q EXCEPT !.pc = "judge"], also)
                      ELSE Tell(p, OrEnd(q, "settle"), "ok", also)  \* published: a lost race is no error
HearsCompleter(p, ok, also) ==
    LET q == procs[p]
    IN  CASE q.pc = "uploading" /\ ok -> Move(p, [q EXCEPT !.pc = "swap"], also)
          [] q.pc = "uploading" -> Tell(p, Ended(q), "again", also)
          [] q.pc = "wait" /\ ok -> Tell(p, [q EXCEPT !.pc = "seal"], "ok", also)
          [] OTHER -> Move(p, [q EXCEPT !.pc = "reread"], also)

Delivers(r, ok, waits, also) ==
    LET words == <<r.kind, "of", r.token, IF ok THEN "takes effect;" ELSE "conflicts;">>
    IN  \/ /\ ok
           /\ UNCHANGED procs
           /\ wrong' = wrong \cup also
           /\ Does("network", words \o <<"no answer">>)
        \/ \E p \in Writers \cup Complete :
           /\ TokenOf(p) = r.token /\ procs[p].pc = waits
           /\ IF p \in Complete THEN HearsCompleter(p, ok, also) ELSE HearsWriter(p, ok, also)
           /\ Does("network", words \o <<p, "is told">>)

SwapArrives(r) ==
    LET marked == IsMarked(r.token)
        repeated == ~marked /\ ~On("won_in_swap") /\ IsShown(r.token)  \* what it would write is there already
        writes == ~marked /\ ~repeated /\ ~SwapConflicts(r)
        after == Written(r.token, r.writes)
    IN  /\ UNCHANGED <<bucket, log, clock>>
        /\ row' = IF ~writes THEN row ELSE IF On("won_in_swap") THEN Marked(after, "won", r.token) ELSE after
        /\ effects' = IF writes THEN Append(effects, r.token) ELSE effects
        /\ net' = UnderWay(Minus(net, r))
        /\ Delivers(r, writes \/ repeated, "wait", IF writes THEN WriteWrongs(r.token, r.writes) ELSE {})

InlineArrives(r) ==
    LET writes == ~IsMarked(r.token) /\ Present = None
    IN  /\ UNCHANGED <<bucket, log, clock>>
        /\ row' = IF writes THEN Written(r.token, r.writes) ELSE row
        /\ effects' = IF writes THEN Append(effects, r.token) ELSE effects
        /\ net' = UnderWay(Minus(net, r))
        /\ Delivers(r, writes, "once", IF writes THEN WriteWrongs(r.token, r.writes) ELSE {})

ReserveArrives(r) ==
    LET ok == r.expected \in {row.target, row.inline}
    IN  /\ UNCHANGED <<bucket, log, effects, clock>>
        /\ row' = IF ok THEN [row EXCEPT !.reserved = @ \cup {r.token}] ELSE row
        /\ net' = UnderWay(Minus(net, r))
        /\ Delivers(r, ok, "reserving", {})

UploadArrives(r) ==
    LET isCopy == r.expected = "copy"
        ok == IF r.writes = "session" THEN r.token \in sessions ELSE ~(Exists(r.token) /\ On("create_only"))
        rest == Minus(net, r)
    IN  /\ isCopy => Exists(r.token)  \* it comes soon: never after the blob was deleted
        /\ UNCHANGED <<row, lapsed, log, effects, clock>>
        /\ sessions' = IF r.writes = "session" THEN sessions \ {r.token} ELSE sessions
        /\ blobs' = IF ok THEN {b \in blobs : b[1] # r.token} \cup {<<r.token, Lives>>} ELSE blobs
        /\ net' = UnderWay(IF Twice /\ ~isCopy THEN Plus(rest, [r EXCEPT !.expected = "copy"]) ELSE rest)
        /\ Delivers(r, ok, IF isCopy THEN "nobody" ELSE "uploading", {})

RecordArrives(r) ==
    /\ UNCHANGED <<row, bucket, effects, clock, procs, wrong>>
    /\ log' = {e \in log : e.token # r.token} \cup {Entry(r.token, r.writes, r.expected)}
    /\ net' = UnderWay(Minus(net, r))
    /\ Does("network", <<"the first record arrives late, of", r.token>>)

Arrives(r) ==
    CASE r.kind = "swap" -> SwapArrives(r)
      [] r.kind = "inline" -> InlineArrives(r)
      [] r.kind = "reserve" -> ReserveArrives(r)
      [] r.kind = "upload" -> UploadArrives(r)
      [] r.kind = "record" -> RecordArrives(r)
Network == \E r \in {m[1] : m \in net} : Arrives(r)

-----------------------------------------------------------------------------
(* What happens by itself. *)

DeadlinePasses ==
    /\ Mortal /\ now = 0
    /\ now' = 1
    /\ UNCHANGED <<row, bucket, log, net, aged, effects, procs, wrong>>
    /\ Does("time", <<"the deadline passes">>)
RowExpires ==
    /\ Expired(row.until, now)
    /\ row' = [row EXCEPT !.target = None, !.inline = None, !.until = 0]
    /\ UNCHANGED <<bucket, log, net, effects, clock, procs, wrong>>
    /\ Does("row", <<"the expired object is collected">>)
BlobExpires ==
    \E b \in blobs :
    /\ Expired(b[2], now)
    /\ blobs' = blobs \ {b}
    /\ lapsed' = lapsed \cup {b[1]}
    /\ UNCHANGED <<row, sessions, log, net, effects, clock, procs, wrong>>
    /\ Does("bucket", <<"its lifecycle rule deletes the expired blob", b[1]>>)
DaysPass ==                     \* what was under way has arrived by now, or never will
    /\ Ages /\ ~aged
    /\ aged' = TRUE
    /\ net' = {}
    /\ procs' = [p \in Processes |-> IF procs[p].pc \in {"start", "end"} /\ procs[p].answer = "" THEN procs[p]
                                     ELSE [procs[p] EXCEPT !.aged = TRUE]]
    /\ log' = {[e EXCEPT !.over = e.claimed] : e \in log}
    /\ UNCHANGED <<row, bucket, now, effects, wrong>>
    /\ Does("time", <<"two days pass">>)
MarkExpires ==
    \E m \in row.marks \ row.fresh :
    /\ aged
    /\ row' = [row EXCEPT !.marks = @ \ {m}]
    /\ UNCHANGED <<bucket, log, net, effects, clock, procs, wrong>>
    /\ Does("row", <<"an old mark is collected:", m[1], m[2]>>)

Done == (log = {} \/ ~Drains) /\ UNCHANGED vars  \* so TLC calls a state a deadlock iff entries stay in it for ever

Next ==
    \/ \E p \in Writers : Writer(p)
    \/ \E p \in Complete : Completer(p)
    \/ \E p \in Recover : Recovery(p)
    \/ \E p \in Read : Reader(p)
    \/ \E p \in Touch : Toucher(p)
    \/ \E p \in Ask : Asker(p)
    \/ \E p \in Audit : Auditor(p)
    \/ Network
    \/ DeadlinePasses \/ RowExpires \/ BlobExpires \/ DaysPass \/ MarkExpires
    \/ Done

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* What must hold.  The names are those of docs/protocol.md. *)

Dangling ==                     \* I1
    /\ row.target # None /\ ~Exists(row.target)
    /\ ~(row.target \in lapsed /\ Expired(row.until, now))
\* I3, as if all processes had died here.  An expired blob is the lifecycle's.  So is one that was touched just before
\* its row expired.
Leak ==
    /\ log = {}
    /\ \A p \in Recover \cup Audit : procs[p].pc \in {"start", "end"}
    /\ \E b \in blobs : b[1] # row.target /\ b[2] # 2 /\ ~Expired(b[2], now)

NoDangling == ~Dangling
NoLeak == ~Leak
NoUnsettled == "UNSETTLED" \notin wrong
NoFalseOk == "FALSE-OK" \notin wrong
NoFalseNo == "FALSE-NO" \notin wrong
NoLate == "LATE" \notin wrong
NoBlind == "BLIND" \notin wrong
NoStaleRead == "STALE-READ" \notin wrong
NoFalseLoss == "FALSE-LOSS" \notin wrong
=============================================================================
