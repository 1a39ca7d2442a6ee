from phalanx.dashboard.entrance import Entrance


def test_a_code_works_once_and_a_new_one_is_announced():
    codes = []
    entrance = Entrance(None, codes.append)

    cookie = entrance.exchange(codes[0])

    assert cookie is not None
    assert entrance.knows(cookie)
    assert entrance.exchange(codes[0]) is None
    assert len(codes) == 2
    assert entrance.exchange(codes[1]) not in (None, cookie)


def test_nobody_is_known_without_a_cookie():
    entrance = Entrance(None, lambda _: None)

    assert not entrance.knows("")
    assert not entrance.knows("ä")
    assert entrance.exchange("") is None
    assert entrance.exchange("ä") is None


def test_only_the_token_itself_is_accepted():
    entrance = Entrance(b"a-long-token", lambda _: None)

    assert entrance.accepts("Bearer a-long-token")
    assert not entrance.accepts("Bearer a-long-toke")
    assert not entrance.accepts("")


def test_without_a_token_no_token_is_accepted():
    entrance = Entrance(None, lambda _: None)

    assert not entrance.accepts("Bearer ")
    assert not entrance.accepts("Bearer None")
