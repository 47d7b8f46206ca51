"""The lexicon of the built-in corpus: words with all their forms, and which words combine.

In the tables commas divide words and spaces divide a word's forms. Nouns: English, French, gender. Adjectives: English,
French masculine, feminine if not regular, then the form before a vowel. Verbs: English base, third person, past; French
third person singular, plural, participle. A slash gives a plural that is not regular: `mouse/mice souris f`.
"""

from dataclasses import dataclass

from heed.microworld.grammar import Adjective, Determiner, Gender, Noun, Verb


def english_plural(word: str) -> str:
    """The regular plural: cats, boxes, stories."""
    if word.endswith(("s", "x", "ch", "sh")):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"


def french_plural(word: str) -> str:
    """The regular plural of a noun or adjective: chats, souris, oiseaux, animaux."""
    if word.endswith(("s", "x")):
        return word
    if word.endswith("eau"):
        return word + "x"
    if word.endswith("al"):
        return word[:-1] + "ux"
    return word + "s"


def _nouns(table: str) -> tuple[Noun, ...]:
    return tuple(_noun(*entry.split()) for entry in table.split(","))


def _noun(english: str, french: str, letter: str) -> Noun:
    english, _, several = english.partition("/")
    french, _, plusieurs = french.partition("/")
    gender: Gender = "masculine" if letter == "m" else "feminine"
    return Noun(english, several or english_plural(english), french, plusieurs or french_plural(french), gender)


def _adjectives(table: str) -> dict[str, Adjective]:
    adjectives = (_adjective(*entry.split()) for entry in table.split(","))
    return {adjective.english: adjective for adjective in adjectives}


def _adjective(english: str, masculine: str, feminine: str = "", before_vowel: str = "") -> Adjective:
    feminine = feminine or (masculine if masculine.endswith("e") else masculine + "e")
    plurals = french_plural(masculine), french_plural(feminine)
    return Adjective(english, masculine, feminine, *plurals, before_vowel or masculine)


def _verbs(table: str) -> dict[str, Verb]:
    verbs = (_verb(*entry.split()) for entry in table.split(","))
    return {verb.english: verb for verb in verbs}


def _verb(base: str, third: str, past: str, singular: str, plural: str, participle: str) -> Verb:
    return Verb(base, third, past, singular, plural, participle)


THE = Determiner("the", "the", "le", "la", "les")
THIS = Determiner("this", "these", "ce", "cette", "ces")
MY = Determiner("my", "my", "mon", "ma", "mes")
A = Determiner("a", "some", "un", "une", "des")
NOT_A = Determiner("a", "any", "de", "de", "de")  # under negation: doesn't buy a car, n'achète pas de voiture
DEFINITE = (THE, THIS, MY)

ADJECTIVES = _adjectives("""
    small petit, big grand, old vieux vieille vieil, new nouveau nouvelle nouvel, beautiful beau belle bel, young jeune,
    red rouge, black noir, white blanc blanche, green vert, blue bleu, grey gris, brown brun,
    rich riche, happy heureux heureuse, famous célèbre, intelligent intelligent,
    expensive cher chère, dirty sale, clean propre, empty vide, strange étrange, interesting intéressant, funny drôle,
    fresh frais fraîche, delicious délicieux délicieuse, cold froid,
    tired fatigué, hungry affamé, scared effrayé, sick malade, lazy paresseux paresseuse, shy timide,
    nervous nerveux nerveuse, clumsy maladroit, worried inquiet inquiète, sad triste, stubborn têtu,
    wide large, long long longue, slippery glissant, deep profond, steep raide, high haut, dark sombre, narrow étroit,
    winding sinueux sinueuse, heavy lourd, bulky encombrant, salty salé, bitter amer amère, spicy épicé, dry sec sèche
""")

VERBS = _verbs("""
    have has had a ont eu, want wants wanted veut veulent voulu,
    love loves loved aime aiment aimé, hate hates hated déteste détestent détesté,
    see sees saw voit voient vu, hear hears heard entend entendent entendu,
    find finds found trouve trouvent trouvé, lose loses lost perd perdent perdu,
    keep keeps kept garde gardent gardé, hide hides hid cache cachent caché,
    buy buys bought achète achètent acheté, sell sells sold vend vendent vendu,
    choose chooses chose choisit choisissent choisi, read reads read lit lisent lu,
    wash washes washed lave lavent lavé, repair repairs repaired répare réparent réparé,
    wear wears wore porte portent porté, visit visits visited visite visitent visité,
    clean cleans cleaned nettoie nettoient nettoyé, paint paints painted peint peignent peint,
    admire admires admired admire admirent admiré, draw draws drew dessine dessinent dessiné,
    eat eats ate mange mangent mangé, smell smells smelled sent sentent senti,
    water waters watered arrose arrosent arrosé, feed feeds fed nourrit nourrissent nourri,
    follow follows followed suit suivent suivi, avoid avoids avoided évite évitent évité,
    give gives gave donne donnent donné, show shows showed montre montrent montré,
    send sends sent envoie envoient envoyé, sleep sleeps slept dort dorment dormi,
    run runs ran court courent couru, walk walks walked marche marchent marché,
    wait waits waited attend attendent attendu, play plays played joue jouent joué,
    cross crosses crossed traverse traversent traversé, climb climbs climbed escalade escaladent escaladé,
    carry carries carried porte portent porté, push pushes pushed pousse poussent poussé
""")
ENTER = Verb("enter", "enters", "entered", "entre", "entrent", "entré", auxiliary="être", preposition="dans")
HAVE, WANT, LOVE, HATE = (VERBS[name] for name in ("have", "want", "love", "hate"))


def adjectives(names: str) -> tuple[Adjective, ...]:
    """The adjectives with these English names."""
    return tuple(ADJECTIVES[name] for name in names.split())


def verbs(names: str) -> tuple[Verb, ...]:
    """The verbs with these English names."""
    return tuple(VERBS[name] for name in names.split())


@dataclass(frozen=True)
class NounClass:
    """A semantic class of nouns and the adjectives that apply to them."""

    nouns: tuple[Noun, ...]
    before: tuple[Adjective, ...]  # before the noun in French
    colours: tuple[Adjective, ...]  # after the noun, alone or with an adjective before it
    qualities: tuple[Adjective, ...]  # after the noun, alone
    states: tuple[Adjective, ...] = ()  # only after the verb be: the dog is hungry

    @property
    def after(self) -> tuple[Adjective, ...]:
        """The adjectives that stand after the noun in French."""
        return self.colours + self.qualities

    @property
    def predicates(self) -> tuple[Adjective, ...]:
        """The adjectives used after the verb be; new, which would be neuf there, is left out."""
        return (*(word for word in self.before if word.english != "new"), *self.after, *self.states)


PEOPLE = NounClass(
    _nouns("""
        man/men homme m, boy garçon m, king roi m, prince prince m,
        uncle oncle m, knight chevalier m, actor acteur m, wizard sorcier m,
        woman/women femme f, girl fille f, queen reine f, princess princesse f,
        aunt tante f, lady dame f, actress actrice f, witch sorcière f
    """),
    before=adjectives("old young beautiful"),
    colours=(),
    qualities=adjectives("rich happy famous intelligent"),
    states=adjectives("tired sick sad nervous worried"),
)
ANIMALS = NounClass(
    _nouns("""
        animal animal m, cat chat m, dog chien m, horse cheval m, bird oiseau m,
        rabbit lapin m, wolf/wolves loup m, bear ours m, owl hibou/hiboux m, donkey âne m,
        mouse/mice souris f, cow vache f, goat chèvre f, hen poule f, turtle tortue f,
        frog grenouille f, spider araignée f, ant fourmi f, goose/geese oie f, giraffe girafe f
    """),
    before=adjectives("small big old beautiful"),
    colours=adjectives("black white grey brown"),
    qualities=(),
    states=adjectives("hungry scared"),
)
READING = NounClass(
    _nouns("book livre m, newspaper journal m, poem poème m, letter lettre f, story histoire f, map carte f"),
    before=adjectives("small big old new beautiful"),
    colours=(),
    qualities=adjectives("strange interesting funny"),
)
VEHICLES = NounClass(
    _nouns("truck camion m, boat bateau m, plane avion m, car voiture f, motorbike moto f, ambulance ambulance f"),
    before=adjectives("small big old new beautiful"),
    colours=adjectives("red blue green white"),
    qualities=adjectives("expensive dirty"),
)
CLOTHES = NounClass(
    _nouns("hat chapeau m, coat manteau m, sweater pull m, dress robe f, shirt chemise f, skirt jupe f"),
    before=adjectives("small big old new beautiful"),
    colours=adjectives("red blue green black"),
    qualities=adjectives("expensive clean"),
)
BUILDINGS = NounClass(
    _nouns("castle château m, hotel hôtel m, museum musée m, house maison f, school école f, church église f"),
    before=adjectives("small big old new beautiful"),
    colours=adjectives("white grey"),
    qualities=adjectives("empty dirty"),
)
PLANTS = NounClass(
    _nouns("tree arbre m, bush buisson m, flower fleur f, plant plante f"),
    before=adjectives("small big old new beautiful"),
    colours=adjectives("red green"),
    qualities=adjectives("strange"),
)
FOOD = NounClass(
    _nouns("cake gâteau m, egg œuf m, cookie biscuit m, apple pomme f, orange orange f, carrot carotte f"),
    before=adjectives("small big beautiful"),
    colours=(),
    qualities=adjectives("fresh delicious cold"),
)


@dataclass(frozen=True)
class Scene:
    """Subjects, verbs and objects that combine; verbs of owning have no past, which needs the imparfait in French."""

    subjects: NounClass
    verbs: tuple[Verb, ...]
    objects: NounClass
    owning: tuple[Verb, ...] = (HAVE, WANT)


SCENES_OF_THINGS = (
    Scene(PEOPLE, verbs("read find lose keep"), READING),
    Scene(PEOPLE, verbs("buy sell repair wash"), VEHICLES),
    Scene(PEOPLE, verbs("wear choose lose wash"), CLOTHES),
    Scene(PEOPLE, verbs("visit admire clean paint"), BUILDINGS),
    Scene(PEOPLE, verbs("water draw admire buy"), PLANTS),
    Scene(PEOPLE, verbs("eat choose buy hide"), FOOD),
)
SCENES = (
    *SCENES_OF_THINGS,
    Scene(ANIMALS, verbs("eat find smell"), FOOD),
    Scene(PEOPLE, verbs("see hear draw feed"), ANIMALS),
    Scene(ANIMALS, verbs("see hear follow avoid"), PEOPLE, owning=()),
)
INTRANSITIVE = verbs("sleep run walk wait play")
GIVING = verbs("give show send")
GIFTS = (READING, CLOTHES, FOOD)


@dataclass(frozen=True)
class Hindrance:
    """An action an animal fails at, and adjectives that give the reason: of the animal only, or of the object only."""

    verb: Verb
    objects: tuple[Noun, ...]  # equally many of each gender
    of_the_object: tuple[Adjective, ...]
    of_the_subject: tuple[Adjective, ...] = adjectives(
        "tired hungry scared sick young lazy shy nervous clumsy worried sad stubborn"
    )


HINDRANCES = (
    Hindrance(
        VERBS["cross"],
        _nouns("bridge pont m, path chemin m, boulevard boulevard m, street rue f, road route f, avenue avenue f"),
        adjectives("wide long slippery"),
    ),
    Hindrance(
        VERBS["cross"],
        _nouns("lake lac m, canal canal m, stream ruisseau m, river rivière f, lagoon lagune f, pool piscine f"),
        adjectives("wide deep"),
    ),
    Hindrance(
        VERBS["climb"],
        _nouns("wall mur m, rock rocher m, volcano volcan m, hill colline f, mountain montagne f, cliff falaise f"),
        adjectives("steep high slippery"),
    ),
    Hindrance(
        ENTER,
        _nouns("tunnel tunnel m, hole trou m, corridor couloir m, cave grotte f, cage cage f, barn grange f"),
        adjectives("dark narrow"),
    ),
    Hindrance(
        VERBS["follow"],
        _nouns("path chemin m, trail sentier m, road route f, track piste f"),
        adjectives("steep narrow winding"),
    ),
    Hindrance(
        VERBS["carry"],
        _nouns("bag sac m, basket panier m, bucket seau m, box boîte f, stone pierre f, suitcase valise f"),
        adjectives("heavy bulky"),
    ),
    Hindrance(
        VERBS["push"],
        _nouns("cart chariot m, barrel tonneau m, bench banc m, table table f, ladder échelle f, wardrobe armoire f"),
        adjectives("heavy bulky"),
    ),
    Hindrance(
        VERBS["eat"],
        _nouns("bread pain m, cheese fromage m, ham jambon m, meat viande f, sausage saucisse f, pizza pizza f"),
        adjectives("salty bitter spicy dry"),
        adjectives("tired scared sick young shy nervous worried sad stubborn"),
    ),
)
