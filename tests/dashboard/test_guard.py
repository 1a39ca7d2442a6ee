from phalanx.dashboard.guard import Guard


def test_a_code_works_once_and_a_new_one_is_announced():
    codes = []
    guard = Guard(None, codes.append)

    cookie = guard.exchange(codes[0])

    assert cookie is not None
    assert guard.knows(cookie)
    assert guard.exchange(codes[0]) is None
    assert len(codes) == 2
    assert guard.exchange(codes[1]) not in (None, cookie)


def test_nobody_is_known_without_a_cookie():
    guard = Guard(None, lambda _: None)

    assert not guard.knows("")
    assert not guard.knows("ä")
    assert guard.exchange("") is None
    assert guard.exchange("ä") is None


def test_only_the_token_itself_is_accepted():
    guard = Guard(b"a-long-token", lambda _: None)

    assert guard.accepts("Bearer a-long-token")
    assert not guard.accepts("Bearer a-long-toke")
    assert not guard.accepts("")


def test_without_a_token_no_token_is_accepted():
    guard = Guard(None, lambda _: None)

    assert not guard.accepts("Bearer ")
    assert not guard.accepts("Bearer None")
