INSERT INTO changes (`stream_seq`, `changed_at`, `changed_by`, `kind`, `target_kind`, `target_key`, `members`) VALUES (1, '2025-11-21 05:00:00.123', 'me', 'user_patched', 'user', 'me', ['a','b']);
